"""Which nodes their engine has out of service."""

from __future__ import annotations

import os

from provision.cluster.inventory import Node

# States of Slurm, besides those in which a node does not respond.
OUT_OF_SERVICE = ("drain", "maint", "fail", "inval")


def is_out_of_service(node: Node) -> bool:
    if node.state == "reserved":
        # For others, unless the user's own jobs go into a reservation.
        return "SBATCH_RESERVATION" not in os.environ
    # `allocated$`: in maintenance, with a job that still runs.
    return not node.responds or "$" in node.state or node.state.startswith(OUT_OF_SERVICE)
