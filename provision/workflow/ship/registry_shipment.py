"""An image of a registry on many nodes: each pulls it by digest with its own engine, and checks it."""

from __future__ import annotations

from provision.cluster import actions
from provision.workflow.ship.distribution import SLOWEST_BYTES_PER_S
from provision.workflow.ship.stages import StageRun
from provision.workflow.ship.states import NodeState


class RegistryShipment(StageRun):
    """One run in which nodes pull an image."""

    def ship(self, reference: str, size: int) -> None:
        """reference: with its digest. size: of all layers."""
        try:
            self._pull(reference, size)
            if not self._options.stage_only and self.may_activate():
                arguments = {**self._common, "reference": reference}
                nodes = self.in_state("passed")
                for name in self.ask(nodes, actions.IMAGE_ACTIVATE, arguments, stage="activate"):
                    self._leased.discard(name)
                    self.record(name, NodeState(state="active"))
        finally:
            self.sync()
        self.release()

    def _pull(self, reference: str, size: int) -> None:
        nodes = self.in_state("pending")
        self._leased.update(node.name for node in nodes)
        timeout_s = self._options.deadline_s + size / SLOWEST_BYTES_PER_S
        arguments = {**self._common, "reference": reference, "timeout_s": timeout_s}
        pulled = self.ask(nodes, actions.IMAGE_PULL, arguments, stage="ship", extra_s=timeout_s)
        for name, installation in pulled.items():
            self.details[name].method = installation["method"]
            self.record(name, NodeState(state="passed"))
        self.sync()
