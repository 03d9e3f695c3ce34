"""Activate an environment that nodes already have: a certain one, or the one before the active one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.cluster.failures import NodeFailure
from provision.cluster.folding import fold_equal
from provision.cluster.remote import merge_same_nodes
from provision.core.errors import InvalidSpec
from provision.workflow.ship.stages import StageRun
from provision.workflow.ship.states import NodeState


class Activation(StageRun):
    """One run that switches nodes between the environments that they have."""

    def ask_history(self) -> dict[str, Mapping[str, Any]]:
        """What each node has: `active`, `previous`, `installed`. Nodes that do not answer fail."""
        arguments = {"path": self._path, "name": self.name}
        nodes = self.in_state("pending", "unknown")
        histories = {}
        for answer in merge_same_nodes(self.ask(nodes, "store-history", arguments, stage="check")):
            if answer.failure is not None and answer.failure.reason == "same-node":
                self.leave_out(answer)
            elif answer.failure is not None:
                self.record_failure(answer)
            else:
                assert answer.result is not None
                histories[answer.node.name] = answer.result
        return histories

    def previous_key(self, histories: Mapping[str, Mapping[str, Any]]) -> str | None:
        """The environment to go back to; None if no node has one.

        Raises InvalidSpec if the nodes would go back to different ones.
        """
        previous = {name: history["previous"] for name, history in histories.items()}
        for name, key in previous.items():
            if key is None:
                self.record(name, _failed("no-previous", "nothing was active before"))
        folded = fold_equal({name: key for name, key in previous.items() if key is not None})
        if len(folded) > 1:
            rows = "; ".join(f"{nodes}: {key}" for nodes, key in folded)
            raise InvalidSpec(
                f"The nodes had different environments before ({rows}).",
                advice="Choose one with --key, or roll back each group with its own --on.",
            )
        return folded[0][1] if folded else None

    def select(self, key: str, histories: Mapping[str, Mapping[str, Any]]) -> None:
        """Find out which nodes have an environment. Changes nothing."""
        for name, history in histories.items():
            if self.states[name].state == "failed":
                continue
            if history["active"] == key:
                self.record(name, NodeState(state="active"))
            elif key in history["installed"]:
                self.record(name, NodeState(state="verified"))
            else:
                installed = ", ".join(history["installed"]) or "none"
                self.record(name, _failed("not-here", f"{key} is not there; {installed}"))

    def switch(self, key: str) -> None:
        """Activate an environment where it is, if enough nodes have it."""
        # Also where it is active: a mount ends with a reboot.
        active = self.in_state("active")
        self.install(self.in_state("verified", "active"), key)
        for node in self.in_state("passed", among=active):
            self.record(node.name, NodeState(state="active"))
        if self.may_activate():
            self.activate(self.in_state("passed"), key)
        self.release()


def _failed(reason: str, message: str) -> NodeState:
    return NodeState(
        state="failed", failure=NodeFailure(stage="check", reason=reason, message=message)
    )
