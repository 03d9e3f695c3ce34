"""Runs one action on this node and prints its reply as one line.

The host finds the line by its mark, so whatever login shells print around it does no harm. The
reply also names the machine that it comes from: one machine may be listed under two names.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from typing import Any

from ..report.credentials import public_document
from .errors import NodeError, describe

MARK = "provision-node: "
# Action -> where its function is, within this package. A function takes the action's arguments as
# keywords and returns what JSON can hold. It is imported only when it runs.
ACTIONS = {
    "facts": "facts:collect",
    "doctor": "diagnosis:diagnose",
    "environment-python": "smoke_ranks:find_python",
    "smoke-prepare": "smoke_ranks:prepare",
    "smoke-run": "smoke_ranks:run",
    "store-status": "store_status:status",
    "store-history": "activation:history",
    "store-receive": "transfer:receive",
    "store-exchange": "transfer:exchange",
    "store-install": "install:install",
    "store-attach": "install:attach",
    "store-activate": "activation:activate",
    "store-contents": "store_contents:contents",
    "store-log": "store_contents:log",
    "store-remove": "store_contents:remove",
    "store-module": "modulefile:enable",
    "store-boot": "boot:install_unit",
    "store-release": "store_lock:release",
    "drift-facts": "drift_facts:node_facts",
    "job-list": "jobs:list_jobs",
    "job-log": "jobs:read_logs",
    "job-cancel": "jobs:cancel",
    "job-ranks": "job_ranks:collect_job",
    "distributions": "drift_facts:distributions",
}
# Set where the host only simulates nodes (`exec:` of --on): the name of this one. "%h" in a text
# argument becomes this name.
SIMULATED_NAME = "PROVISION_NODE_NAME"
# Slurm's name of the node on which a task runs.
SLURM_NODE = "SLURMD_NODENAME"
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def main(action: str, arguments: dict[str, Any]) -> None:
    """Run an action and print the reply."""
    module_name, _, function_name = ACTIONS[action].partition(":")
    function = getattr(importlib.import_module("." + module_name, __package__), function_name)
    reply: dict[str, object] = {"identity": identity()}
    try:
        reply["result"] = function(**_for_simulated_node(arguments))
    except (NodeError, OSError) as error:
        reply["error"] = describe(error)
    if action != "job-log":  # the user's own, as the job wrote it
        reply = public_document(reply)
    # It begins with a line end: what was printed before may not have ended its line.
    sys.stdout.write("\n" + MARK + json.dumps(reply) + "\n")
    sys.stdout.flush()


def identity() -> list[str]:
    """What identifies this machine, whatever name it was reached by: its own name and its boot.

    Not /etc/machine-id: nodes that boot from one image share it. Slurm can run several nodes on one
    machine, which only its own variable tells apart.
    """
    simulated = os.environ.get(SIMULATED_NAME)
    if simulated:
        return [simulated, "simulated"]
    try:
        with open(BOOT_ID) as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return [os.environ.get(SLURM_NODE) or socket.gethostname(), boot]


def _for_simulated_node(arguments: dict[str, Any]) -> dict[str, Any]:
    name = os.environ.get(SIMULATED_NAME)
    if not name:
        return arguments
    filled = dict(arguments)
    for key, value in arguments.items():
        if isinstance(value, str):
            filled[key] = value.replace("%h", name)
    return filled
