"""One image to many nodes: check, ship, verify, install, activate.

Each stage asks the nodes that passed the one before. A node that fails leaves the run, and the
others go on. Every step on a node is idempotent by the image's hash, so a run that was killed is
simply run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from provision.cluster import actions, fitness
from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import Node, Nodes
from provision.cluster.pack import Pack, node_pack, signature
from provision.cluster.remote import NodeReply
from provision.core.errors import InvalidSpec
from provision.core.types import Progress
from provision.workflow.ship.distribution import SLOWEST_BYTES_PER_S, PackDistribution
from provision.workflow.ship.probe import probe_script
from provision.workflow.ship.stages import ShipRequest, StageRun
from provision.workflow.ship.states import plan_waves
from provision_runtime.node.results import StoreStatus
from provision_runtime.report.text import format_bytes, format_count

# As many of the nodes that have the image already are asked to serve it.
ASKED_SERVERS = 8
# The share of the deadline that a node has in the stage check before the others go on without it. It has
# the rest at the end, so a node that hangs costs one deadline in all.
FIRST_CHECK_SHARE = 0.25

# Tests an environment on nodes where it was activated; why it is not good, or nothing.
WaveTest = Callable[[Nodes], str]


class Shipment(StageRun):
    """One run over nodes."""

    def __init__(
        self,
        request: ShipRequest,
        identity: Mapping[str, str],
        progress: Progress,
        pack: Pack,
        test_wave: WaveTest | None = None,
    ) -> None:
        super().__init__(request, identity, progress)
        self._test_wave = test_wave
        self._pack, self.key, self.size = pack, pack.key, pack.size
        self._arguments = {
            "path": self._path,
            "pack": node_pack(pack),
            "run": self._common["run"],
        }
        self._signed = signature(pack)
        self._reading_s = pack.size / SLOWEST_BYTES_PER_S
        self._statuses: dict[str, StoreStatus] = {}
        self.distribution = PackDistribution(
            pack, request, self._arguments, progress, self._record_transfer
        )

    def ship(self) -> None:
        """All stages. Nodes that did not respond in time are asked once more: at the end, or before
        nothing is sent because of them."""
        self.check(self.in_state("pending"), FIRST_CHECK_SHARE)
        is_hopeful = self.is_worth_sending()
        if not is_hopeful:
            self.check(self.in_state("unknown"), 1 - FIRST_CHECK_SHARE)
        if self.is_worth_sending():
            self._prepare()
        if is_hopeful:
            self.check(self.in_state("unknown"), 1 - FIRST_CHECK_SHARE)
            self._prepare()
        if not self.request.stage_only and self.may_activate():
            self._activate_waves()
        if self.request.boot_unit:
            self._install_boot_unit()
        if self.request.module_folder:
            arguments = {**self._common, "folder": self.request.module_folder}
            self.ask(self.in_state("active"), actions.STORE_MODULE, arguments, stage="module")
        self.release()

    def _install_boot_unit(self) -> None:
        from provision import render  # few ships need it

        remake = ("provision", "ship", "NAME", "--boot-unit")
        arguments = {
            "path": self._path,
            "run": self._common["run"],
            "script": render.render_node_script(render.MOUNT_SCRIPT, {}, remake=remake),
            "unit": render.render_node_script(render.MOUNT_UNIT, {}, remake=remake),
        }
        ready = self.in_state("passed", "active")
        for name in self.ask(ready, actions.STORE_BOOT, arguments, stage="boot"):
            self.states[name].ends_at_boot = False

    def _activate_waves(self) -> None:
        """Activate one wave after the other, until one is not good."""
        ready = self.in_state("passed", "active")
        for wave in plan_waves(self.request.waves, ready, len(self._nodes)):
            passed = self.in_state("passed", among=wave)
            self.activate(passed, self._pack.key)
            stragglers = self.in_state("unknown", among=passed)
            self.check(stragglers)
            self.activate(self.in_state("passed", among=stragglers), self._pack.key)
            inactive = [node for node in passed if node not in self.in_state("active")]
            if inactive and len(self.request.waves) > 1:
                self.halted = (
                    f"{format_count(len(inactive), 'node')} of a wave could not be activated"
                )
            elif wave and self._test_wave is not None:
                self.halted = self._test_wave(wave)
            if self.halted:
                break

    def _prepare(self) -> None:
        """Bring nodes up to `passed`; those that are active already stay so."""
        self._bring_image()
        allowed: tuple[str, ...] = ()
        if self.request.shared and not all(map(_can_mount, self._statuses.values())):
            # A shared store is unpacked unless all nodes can mount its image.
            allowed = ("tree",)
        self.install(
            self.in_state("verified"),
            self._pack.key,
            extra_s=self._reading_s,
            allowed=allowed,
            signed=self._signed,
        )

    def is_worth_sending(self) -> bool:
        return self.request.stage_only or self.can_be_ready()

    def check(self, nodes: Nodes, share: float = 1.0) -> None:
        """Ask which nodes have nothing to do, and the others what they have and can take. share: of
        the deadline, that a node has for each of the two replies."""
        limit_s = share * self.request.deadline_s
        suffix = self._pack.image.name.removeprefix(self._pack.key)
        script = probe_script(self._path, self._pack, suffix, self._defaults.readers)
        probes = self.ask(nodes, actions.PROBE, script, stage="check", limit_s=limit_s)
        remaining = []
        for name, probe in probes.items():
            if probe["active"]:
                self.states[name].reach("active")
            else:
                remaining.append(self._nodes[name])
        self._check_stores(remaining, limit_s)

    def _ask_statuses(
        self, nodes: Nodes, limit_s: float | None = None
    ) -> list[NodeReply[StoreStatus]]:
        arguments = {**self._arguments, "signed": self._signed}
        return self.replies(nodes, actions.STORE_STATUS, arguments, stage="check", limit_s=limit_s)

    def _check_stores(self, nodes: Nodes, limit_s: float | None = None) -> None:
        for reply in self._ask_statuses(nodes, limit_s):
            status, name = reply.result, reply.node.name
            if status is None:
                assert reply.failure is not None
                self.record_failure(reply.node.name, reply.failure)
                continue
            self._statuses[name] = status
            state = self.states[name]
            state.note = status.get("note", "")
            failure = None
            if not (status["installed"] and status["verified"]):
                failure = self._unfit(reply)
            if failure is not None:
                state.fail(failure)
            elif not status["verified"]:
                state.reach("fit")
            elif not status["installed"]:
                state.reach("verified")
            else:
                state.reach("active" if status["active"] == self._pack.key else "passed")
        if not self.request.shared:
            # Raise InvalidSpec if several nodes have the same network file system at the path:
            # each would write into the store of the others.
            users: dict[tuple[str | None, str | None], str] = {}
            for name, status in self._statuses.items():
                store = status.get("store")
                if store is None or not store["is_network"]:
                    continue
                first = users.setdefault((store["type"], store["source"]), name)
                if first != name:
                    raise InvalidSpec(
                        f"{self._path} is one {store['type']} file system ({store['source']}) on "
                        f"{first} and {name}: they share one store.",
                        advice="Ship with --to shared, or set `store: shared` in nodes.yml.",
                    )

    def _unfit(self, reply: NodeReply[StoreStatus]) -> NodeFailure | None:
        """Why a node cannot take the image."""
        status = self._statuses[reply.node.name]
        sidecar, methods = self._pack.sidecar, status.get("methods", [])
        # The space for what is not there yet.
        store_bytes = 0 if status["verified"] else self._pack.size - status["received"]
        needs_tree = methods[:1] == ["tree"]
        if needs_tree:
            store_bytes += sidecar["unpacked_size"]
        needs = fitness.EnvironmentNeeds(
            name=sidecar["name"],
            platforms=(sidecar["platform"],),
            glibc=sidecar["glibc_min"],
            store_bytes=store_bytes,
        )
        if needs_tree:
            needs = replace(needs, inodes=sidecar["unpacked_files"])
        report = fitness.judge(reply, needs, ("system", "store", "methods"))
        return report.problems[0] if report.problems else None

    def _bring_image(self) -> None:
        """Bring the image to the nodes that lack it; what has arrived already stays."""
        waiting = self.in_state("fit")
        if not waiting:
            return
        self._leased.update(node.name for node in waiting)
        size = format_bytes(self._pack.size)
        self._progress.info(f"shipping {size} to {len(waiting)} of {len(self._nodes)} nodes")
        if not self.request.shared:
            self.distribution.distribute(waiting, self._servers(), self._statuses)
            return
        # One copy for all nodes: the others see what one of them verified.
        rest = waiting
        if not self.in_state("verified", "passed", "active"):
            rest = self._by_one_or_all(
                "verified",
                waiting,
                lambda nodes: self.distribution.distribute(nodes, [], self._statuses),
            )
        for node in rest:
            self.states[node.name].reach("verified")

    def _servers(self) -> list[Node]:
        """Nodes that have the image and whose addresses are here. Those where it was active before
        have not sent them yet, and a few of them are enough."""
        candidates = self.in_state("verified", "passed", "active")
        unasked = [node for node in candidates if node.name not in self._statuses]
        for reply in self._ask_statuses(unasked[:ASKED_SERVERS]):
            if reply.result is not None and reply.result["verified"]:
                self._statuses[reply.node.name] = reply.result
        return [node for node in candidates if node.name in self._statuses]

    def _record_transfer(self, reply: NodeReply[Any]) -> None:
        failure = reply.failure
        if failure is None:
            self.states[reply.node.name].reach("verified")
        elif failure.reason == "wrong-bytes":
            self.record_failure(reply.node.name, replace(failure, stage="verify"))
        else:
            self.record_failure(reply.node.name, failure)


def _can_mount(status: StoreStatus) -> bool:
    return status.get("methods", [])[:1] not in ([], ["tree"])
