"""Activate an environment that nodes already have: a certain one, or the one before the active one."""

from __future__ import annotations

from collections.abc import Mapping

from provision.cluster import actions
from provision.cluster.failures import NodeFailure
from provision.cluster.folding import fold_equal
from provision.core.errors import InvalidSpec
from provision.workflow.ship.stages import StageRun
from provision_runtime.node.results import History


class ActivationRun(StageRun):
    """One run that switches nodes between the environments that they have."""

    def ask_history(self) -> dict[str, History]:
        nodes = self.in_state("pending", "unknown")
        arguments = {"path": self._path, "name": self.request.name}
        return self.ask(nodes, actions.STORE_HISTORY, arguments, stage="check")

    def previous_key(self, histories: Mapping[str, History]) -> str | None:
        """The environment to go back to; None if no node has one.

        Raises InvalidSpec if the nodes would go back to different ones.
        """
        previous = {}
        for name, history in histories.items():
            if history["previous"] is None:
                self._fail(name, "no-previous", "nothing was active before")
            else:
                previous[name] = history["previous"]
        folded = fold_equal(previous)
        if len(folded) > 1:
            rows = "; ".join(f"{nodes}: {key}" for nodes, key in folded)
            raise InvalidSpec(
                f"The nodes had different environments before ({rows}).",
                advice="Choose one with --key, or roll back each group with its own --on.",
            )
        return folded[0][1] if folded else None

    def select(self, key: str, histories: Mapping[str, History]) -> None:
        """Find out which nodes have an environment. Changes nothing."""
        for name, history in histories.items():
            if self.states[name].state == "failed":
                continue
            if history["active"] == key:
                self.states[name].reach("active")
            elif key in history["installed"]:
                self.states[name].reach("verified")
            else:
                installed = ", ".join(history["installed"]) or "none"
                self._fail(name, "not-here", f"{key} is not there; {installed}")

    def switch(self, key: str) -> None:
        """Activate an environment where it is, if enough nodes have it."""
        # Also where it is active: a mount ends with a reboot.
        active = self.in_state("active")
        self.install(self.in_state("verified", "active"), key)
        for node in self.in_state("passed", among=active):
            self.states[node.name].reach("active")
        if self.may_activate():
            self.activate(self.in_state("passed"), key)
        self.release()

    def _fail(self, name: str, reason: str, message: str) -> None:
        self.states[name].fail(NodeFailure(stage="check", reason=reason, message=message))
