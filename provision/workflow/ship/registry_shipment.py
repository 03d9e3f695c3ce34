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
        nodes = self.in_state("pending")
        self._leased.update(node.name for node in nodes)
        common = {**self._common, "reference": reference}
        timeout_s = self._options.deadline_s + size / SLOWEST_BYTES_PER_S
        pull = {**common, "timeout_s": timeout_s}
        try:
            pulled = self.ask(nodes, actions.IMAGE_PULL, pull, stage="ship", extra_s=timeout_s)
            for name, installation in pulled.items():
                self.details[name].method = installation["method"]
                self.record(name, NodeState(state="passed"))
            self.sync()
            if not self._options.stage_only and self.may_activate():
                nodes = self.in_state("passed")
                for name in self.ask(nodes, actions.IMAGE_ACTIVATE, common, stage="activate"):
                    self._leased.discard(name)
                    self.record(name, NodeState(state="active"))
        finally:
            self.sync()
        self.release()
