"""One image to many nodes: check, ship, verify, install, activate.

Each stage asks the nodes that passed the one before. A node that fails leaves the run, and the
others go on. Every step on a node is idempotent by the image's hash, so a run that was killed is
simply run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.cluster import fitness
from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import Node, NodeSelection
from provision.cluster.pack import Pack
from provision.cluster.remote import NodeAnswer, merge_same_nodes
from provision.core.errors import InvalidSpec
from provision.core.types import Progress
from provision.workflow.ship.distribution import (
    SLOWEST_BYTES_PER_S,
    PackDistribution,
    Transfers,
    node_pack,
)
from provision.workflow.ship.journal import ShipJournal
from provision.workflow.ship.probe import probe_script
from provision.workflow.ship.stages import RunIdentity, StageOptions, StageRun
from provision.workflow.ship.states import NodeState, state_of_failure
from provision_runtime.report.text import format_bytes

# As many of the nodes that have the image already are asked to serve it.
ASKED_SERVERS = 8
# Of the deadline, how long a node has in the stage check before the others go on without it. It has
# the rest at the end, so a node that hangs costs one deadline in all.
FIRST_CHECK_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class ShipOptions(StageOptions):
    """tree: how many nodes fetch from one at the same time; 0: every node gets its copy from
    here."""

    tree: int = 2
    stage_only: bool = False


class Shipment(StageRun):
    """One run over nodes whose stores are their own."""

    def __init__(
        self,
        selection: NodeSelection,
        pack: Pack,
        identity: RunIdentity,
        options: ShipOptions,
        journal: ShipJournal | None,
        progress: Progress,
        finished: Iterable[str] = (),
    ) -> None:
        super().__init__(selection, pack.name, identity, options, journal, progress, finished)
        self._pack, self._stage_only = pack, options.stage_only
        self._key = pack.key
        self._reading_s = pack.size / SLOWEST_BYTES_PER_S
        self._statuses: dict[str, Mapping[str, Any]] = {}
        transfers = Transfers(
            pack=pack,
            run=self._run,
            defaults=selection.defaults,
            tree=options.tree,
            retries=options.retries,
            deadline_s=options.deadline_s,
        )
        self.distribution = PackDistribution(
            transfers, progress, self._record_transfer, self.is_stopped
        )

    def ship(self) -> None:
        """All stages. A node that was late has a second chance at the end, before the decision
        whether to activate."""
        first_check_s = FIRST_CHECK_SHARE * self._options.deadline_s
        second_check_s = self._options.deadline_s - first_check_s
        try:
            self._prepare(self.in_state("pending"), first_check_s)
            late = self.in_state("unknown")
            if late and not self.is_stopped():
                self._had_second_chance.update(node.name for node in late)
                self._prepare(late, second_check_s)
            if not self._stage_only and self.may_activate():
                passed = self.in_state("passed")
                self.activate(passed, self._key)
                late = self.in_state("unknown", among=passed)
                self.check(late, second_check_s)
                self.activate(self.in_state("passed", among=late), self._key)
        finally:
            self.sync()
        self.release()

    def _prepare(self, nodes: Sequence[Node], check_s: float) -> None:
        """Bring nodes up to `passed`; those that are active already stay so."""
        self.check(nodes, check_s)
        self._bring_image(nodes)
        candidates = self.in_state("verified", among=nodes)
        self.install(candidates, self._key, extra_s=self._reading_s, allowed=self._allowed_ways())

    def _allowed_ways(self) -> tuple[str, ...]:
        """A shared store is unpacked unless all nodes can mount its image."""
        if not self._options.shared:
            return ()
        for status in self._statuses.values():
            if status.get("ways", [])[:1] in ([], ["tree"]):
                return ("tree",)
        return ()

    def check(self, nodes: Sequence[Node], check_s: float) -> None:
        """Ask which nodes have nothing to do, and the others what they have and can take.

        check_s: how long a node may take for each of the two answers, in seconds.
        """
        suffix = self._pack.image.name.removeprefix(self._key)
        readers = self._selection.defaults.readers
        script = probe_script(self._path, node_pack(self._pack), suffix, readers)
        with self._progress.meter("checking nodes", len(nodes)) as meter:
            answers = self.ask_script(
                nodes,
                script,
                stage="check",
                timeout_s=check_s,
                on_each=lambda: meter.advance(1),
            )
        others = []
        for answer in merge_same_nodes(answers):
            if answer.failure is not None and answer.failure.reason == "same-node":
                self.leave_out(answer)
            elif answer.failure is not None:
                self.record_failure(answer)
            elif answer.result and answer.result["active"]:
                self.record(answer.node.name, NodeState(state="active"))
            else:
                others.append(answer.node)
        self._check_stores(others, check_s)
        self.sync()

    def _check_stores(self, nodes: Sequence[Node], check_s: float) -> None:
        arguments = {"path": self._path, "pack": node_pack(self._pack), "run": self._run}
        answers = self.ask(nodes, "store-status", arguments, stage="check", deadline_s=check_s)
        for answer in answers:
            if answer.failure is not None:
                self.record_failure(answer)
                continue
            assert answer.result is not None
            name = answer.node.name
            self._statuses[name] = answer.result
            self._take_note(answer)
            state = self._present_state(answer.result)
            if state.state in ("fit", "verified"):
                failure = self._unfit(answer)
                state = state_of_failure(failure) if failure else state
            self.record(name, state)
        if not self._options.shared:
            self._refuse_shared_path()

    def _present_state(self, status: Mapping[str, Any]) -> NodeState:
        """By what a node has. Whether it is fit is judged next."""
        if not status["verified"]:
            return NodeState(state="fit")
        if not status["installed"]:
            return NodeState(state="verified")
        if status["active"] != self._key:
            return NodeState(state="passed")
        return NodeState(state="active")

    def _unfit(self, answer: NodeAnswer) -> NodeFailure | None:
        """Why a node cannot take the image."""
        facts = answer.result or {}
        ways = facts.get("ways", [])
        needs_tree = ways[:1] == ["tree"]
        needs = self._needs(answer.node.name, needs_tree)
        report = fitness.judge(answer, needs, ("system", "store"))
        if report.problems:
            return report.problems[0]
        if not ways:
            message = facts["unread"].get(
                "ways", f"nothing there can mount or unpack {self._pack.image.name}"
            )
            return NodeFailure(stage="check", reason="no-way", message=message)
        free_inodes, files = facts["store"]["free_inodes"], self._pack.sidecar["unpacked_files"]
        if needs_tree and free_inodes is not None and free_inodes < files:
            message = f"{free_inodes} are free in {self._path}; {files} are needed to unpack"
            return NodeFailure(stage="check", reason="no-inodes", message=message)
        return None

    def _needs(self, name: str, needs_tree: bool) -> fitness.EnvironmentNeeds:
        """What the environment needs of a node, with the space for what is not there yet."""
        sidecar, status = self._pack.sidecar, self._statuses[name]
        store_bytes = 0
        if not status["verified"]:
            store_bytes += self._pack.size - status["received"]
        if needs_tree:
            store_bytes += sidecar["unpacked_size"]
        return fitness.EnvironmentNeeds(
            name=sidecar["name"],
            platforms=(sidecar["platform"],),
            glibc=sidecar["glibc_min"],
            store_bytes=store_bytes,
        )

    def _refuse_shared_path(self) -> None:
        """Raise InvalidSpec if several nodes have the same network file system at the path: each
        would write into the store of the others."""
        users: dict[tuple[str, str], list[str]] = {}
        for name, status in self._statuses.items():
            store = status.get("store")
            if store and store["is_network"]:
                users.setdefault((store["type"], store["source"]), []).append(name)
        for (kind, source), names in users.items():
            if len(names) > 1:
                raise InvalidSpec(
                    f"{self._path} is one {kind} file system ({source}) on {names[0]} and "
                    f"{names[1]}: they share one store.",
                    advice="Ship with --to shared, or set `store: shared` in nodes.yml.",
                )

    def _bring_image(self, nodes: Sequence[Node]) -> None:
        """Verify what has arrived already, and bring the image to all others."""
        self._verify_present(nodes)
        waiting = self.in_state("fit", among=nodes)
        if not waiting or self.is_stopped():
            return
        servers = [] if self._options.shared else self._servers()
        self._leased.update(node.name for node in waiting)
        size = format_bytes(self._pack.size)
        self._progress.say(f"shipping {size} to {len(waiting)} of {len(self._nodes)} nodes")
        if self._options.shared:
            self._bring_to_one(waiting)
        else:
            self.distribution.distribute(waiting, servers, self._statuses)
        self.sync()

    def _bring_to_one(self, nodes: Sequence[Node]) -> None:
        """One copy for all nodes: the others see what one of them verified."""
        for node in nodes:
            if self.in_state("verified", "passed", "active") or self.is_stopped():
                break
            self.distribution.distribute([node], [], self._statuses)
        if self.in_state("verified", "passed", "active"):
            for node in self.in_state("fit", among=nodes):
                self.record(node.name, NodeState(state="verified"))

    def _servers(self) -> list[Node]:
        """Nodes that have the image and whose addresses are known. Those where it was active before
        have not said them yet, and a few of them are enough."""
        candidates = self.in_state("verified", "passed", "active")
        servers = [node for node in candidates if node.name in self._statuses]
        unasked = [node for node in candidates if node.name not in self._statuses]
        arguments = {"path": self._path, "pack": node_pack(self._pack), "run": self._run}
        for answer in self.ask(unasked[:ASKED_SERVERS], "store-status", arguments, stage="check"):
            if answer.result is not None and answer.result["verified"]:
                self._statuses[answer.node.name] = answer.result
                servers.append(answer.node)
        return servers

    def _verify_present(self, nodes: Sequence[Node]) -> None:
        """A whole image that an earlier run left, or that was copied there by other means."""
        candidates = []
        for node in self.in_state("fit", among=nodes):
            status = self._statuses[node.name]
            if status["received"] == self._pack.size or status["has_image"]:
                candidates.append(node)
        if self._options.shared:
            candidates = candidates[:1]
        self._leased.update(node.name for node in candidates)
        arguments = {
            "path": self._path,
            "pack": node_pack(self._pack),
            "sidecar": dict(self._pack.sidecar),
            "run": self._run,
        }
        answers = self.ask(
            candidates,
            "store-verify",
            arguments,
            stage="verify",
            retries=0,
            extra_s=self._reading_s,
        )
        for answer in answers:
            if answer.failure is not None and answer.failure.reason == "wrong-bytes":
                # It is as if nothing had arrived.
                self._statuses[answer.node.name] = {
                    **self._statuses[answer.node.name],
                    "received": 0,
                }
                continue
            self._record_transfer(answer)

    def _record_transfer(self, answer: NodeAnswer) -> None:
        if answer.failure is None:
            self.record(answer.node.name, NodeState(state="verified"))
        elif answer.failure.reason == "wrong-bytes":
            self.record(answer.node.name, NodeState(state="shipped"))
            self.record_failure(answer, stage="verify")
        else:
            self.record_failure(answer)
