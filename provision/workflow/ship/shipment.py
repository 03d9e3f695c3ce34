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
    """One run over nodes. halted: why no further wave was activated."""

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
        self.halted = ""
        self._pack = pack
        self._arguments = {
            "path": self._path,
            "pack": node_pack(pack),
            "run": self._common["run"],
        }
        self._signed = signature(pack)
        self._reading_s = pack.size / SLOWEST_BYTES_PER_S
        self._statuses: dict[str, StoreStatus] = {}
        self.distribution = PackDistribution(
            pack, request, self._arguments, progress, self._record_transfer, self.is_stopped
        )

    def ship(self) -> None:
        """All stages. A straggler has a second chance at the end, before the decision whether to
        activate."""
        first_check_s = FIRST_CHECK_SHARE * self._request.deadline_s
        second_check_s = self._request.deadline_s - first_check_s
        self.check(self.in_state("pending"), first_check_s)
        if not self._is_worth_sending():
            # Before gigabytes go out that nobody could activate.
            self._check_again(second_check_s)
        if self._is_worth_sending():
            self._prepare(self.in_state("fit", "verified", "passed"))
            if stragglers := self._check_again(second_check_s):
                self._prepare(stragglers)
        if not self._request.stage_only and self.may_activate():
            self._activate_waves(second_check_s)
        if self._request.boot_unit:
            self._install_boot_unit()
        if self._request.module_folder:
            arguments = {**self._common, "folder": self._request.module_folder}
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

    def _is_worth_sending(self) -> bool:
        return self._request.stage_only or self.can_be_ready()

    def _check_again(self, check_s: float) -> list[Node]:
        """The second chance of nodes that did not respond in time."""
        stragglers = [
            node for node in self.in_state("unknown") if node.name not in self._had_second_chance
        ]
        if not stragglers or self.is_stopped():
            return []
        self._had_second_chance.update(node.name for node in stragglers)
        self.check(stragglers, check_s)
        return stragglers

    def _activate_waves(self, check_s: float) -> None:
        """Activate one wave after the other, until one is not good."""
        ready = self.in_state("passed", "active")
        for wave in plan_waves(self._request.waves, ready, len(self._nodes)):
            passed = self.in_state("passed", among=wave)
            self.activate(passed, self._pack.key)
            stragglers = self.in_state("unknown", among=passed)
            self.check(stragglers, check_s)
            self.activate(self.in_state("passed", among=stragglers), self._pack.key)
            inactive = [node for node in passed if node not in self.in_state("active")]
            if inactive and len(self._request.waves) > 1:
                self.halted = (
                    f"{format_count(len(inactive), 'node')} of a wave could not be activated"
                )
            elif wave and self._test_wave is not None:
                self.halted = self._test_wave(wave)
            if self.halted:
                break

    def _prepare(self, nodes: Nodes) -> None:
        """Bring nodes up to `passed`; those that are active already stay so."""
        self._bring_image(nodes)
        allowed: tuple[str, ...] = ()
        if self._request.shared and not all(map(_can_mount, self._statuses.values())):
            # A shared store is unpacked unless all nodes can mount its image.
            allowed = ("tree",)
        candidates = self.in_state("verified", among=nodes)
        self.install(
            candidates,
            self._pack.key,
            extra_s=self._reading_s,
            allowed=allowed,
            signed=self._signed,
        )

    def check(self, nodes: Nodes, check_s: float) -> None:
        """Ask which nodes have nothing to do, and the others what they have and can take.

        check_s: how long a node may take for each of the two replies, in seconds.
        """
        suffix = self._pack.image.name.removeprefix(self._pack.key)
        script = probe_script(self._path, self._pack, suffix, self._defaults.readers)
        probes = self.ask(nodes, actions.PROBE, script, stage="check", limit_s=check_s)
        remaining = []
        for name, probe in probes.items():
            if probe["active"]:
                self.states[name].reach("active")
            else:
                remaining.append(self._nodes[name])
        self._check_stores(remaining, check_s)

    def _ask_statuses(self, nodes: Nodes, limit_s: float) -> list[NodeReply[StoreStatus]]:
        arguments = {**self._arguments, "signed": self._signed}
        return self.replies(nodes, actions.STORE_STATUS, arguments, stage="check", limit_s=limit_s)

    def _check_stores(self, nodes: Nodes, check_s: float) -> None:
        for reply in self._ask_statuses(nodes, check_s):
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
        if not self._request.shared:
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
        report = fitness.judge(reply, needs, ("system", "store"))
        if report.problems:
            return report.problems[0]
        if not methods:
            message = status["unread"].get(
                "methods", f"nothing there can mount or unpack {self._pack.image.name}"
            )
            return NodeFailure(stage="check", reason="no-method", message=message)
        free_inodes, files = status["store"]["free_inodes"], sidecar["unpacked_files"]
        if needs_tree and free_inodes is not None and free_inodes < files:
            message = f"{free_inodes} are free in {self._path}; {files} are needed to unpack"
            return NodeFailure(stage="check", reason="no-inodes", message=message)
        return None

    def _bring_image(self, nodes: Nodes) -> None:
        """Bring the image to nodes; what has arrived already stays."""
        waiting = self.in_state("fit", among=nodes)
        if not waiting or self.is_stopped():
            return
        servers = [] if self._request.shared else self._servers()
        self._leased.update(node.name for node in waiting)
        size = format_bytes(self._pack.size)
        self._progress.info(f"shipping {size} to {len(waiting)} of {len(self._nodes)} nodes")
        if self._request.shared:
            # One copy for all nodes: the others see what one of them verified.
            for node in waiting:
                if self.in_state("verified", "passed", "active") or self.is_stopped():
                    break
                self.distribution.distribute([node], [], self._statuses)
            if self.in_state("verified", "passed", "active"):
                for node in self.in_state("fit", among=waiting):
                    self.states[node.name].reach("verified")
        else:
            self.distribution.distribute(waiting, servers, self._statuses)

    def _servers(self) -> list[Node]:
        """Nodes that have the image and whose addresses are here. Those where it was active before
        have not sent them yet, and a few of them are enough."""
        candidates = self.in_state("verified", "passed", "active")
        unasked = [node for node in candidates if node.name not in self._statuses]
        for reply in self._ask_statuses(unasked[:ASKED_SERVERS], self._request.deadline_s):
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
