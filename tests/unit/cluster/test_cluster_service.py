"""Nodes that their engine has out of service."""

from __future__ import annotations

import pytest

from provision.cluster.inventory import Node
from provision.cluster.service import is_out_of_service


@pytest.mark.parametrize(
    ("state", "is_out"),
    [("idle", False), ("mixed-", False), ("maint", True), ("allocated$", True), ("drained", True)],
)
def test_states_of_slurm(state: str, is_out: bool) -> None:
    node = Node(name="n1", engine="slurm", address="n1", state=state)
    assert is_out_of_service(node) == is_out
