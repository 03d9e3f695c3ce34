"""An image of a registry on many nodes: each pulls it by digest with its own engine, and checks it."""

from __future__ import annotations

from provision.cluster.remote import merge_same_nodes
from provision.workflow.ship.distribution import SLOWEST_BYTES_PER_S
from provision.workflow.ship.stages import StageRun
from provision.workflow.ship.states import NodeState


class RegistryShipment(StageRun):
    """One run in which nodes pull an image."""

    def ship(self, reference: str, size: int, *, stage_only: bool) -> None:
        """reference: with its digest. size: of all layers."""
        try:
            self._pull(reference, size)
            if not stage_only and self.may_activate():
                self._activate(reference)
        finally:
            self.sync()
        self.release()

    def _pull(self, reference: str, size: int) -> None:
        nodes = self.in_state("pending")
        self._leased.update(node.name for node in nodes)
        timeout_s = self._options.deadline_s + size / SLOWEST_BYTES_PER_S
        arguments = {
            "path": self._path,
            "name": self.name,
            "reference": reference,
            "run": self._run,
            "timeout_s": timeout_s,
        }
        with self._progress.meter("pulling", len(nodes)) as meter:
            answers = self.ask(
                nodes,
                "image-pull",
                arguments,
                stage="ship",
                extra_s=timeout_s,
                on_each=lambda: meter.advance(1),
            )
        for answer in merge_same_nodes(answers):
            name = answer.node.name
            if answer.failure is not None and answer.failure.reason == "same-node":
                self.leave_out(answer)
                self._leased.discard(name)
            elif answer.failure is not None:
                self.record_failure(answer)
            else:
                assert answer.result is not None
                self.ways[name] = answer.result["way"]
                self.record(name, NodeState(state="passed"))
        self.sync()

    def _activate(self, reference: str) -> None:
        arguments = {
            "path": self._path,
            "name": self.name,
            "reference": reference,
            "run": self._run,
        }
        nodes = self.in_state("passed")
        for answer in self.ask(nodes, "image-activate", arguments, stage="activate"):
            if answer.failure is not None:
                self.record_failure(answer)
                continue
            self._leased.discard(answer.node.name)
            self.record(answer.node.name, NodeState(state="active"))
