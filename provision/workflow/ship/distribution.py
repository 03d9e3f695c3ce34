"""The way of an image to many nodes: from here to a few, and from node to node to all others.

A node that has the whole image and verified it serves it to others, so at most three nodes get
it from this machine, however many there are.
"""

from __future__ import annotations

import os
import random
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provision.adapters import clustershell
from provision.adapters.slurm import nodes as slurm_nodes
from provision.cluster.failures import NodeFailure
from provision.cluster.folding import slurm_host_list
from provision.cluster.inventory import Node, NodeDefaults
from provision.cluster.pack import Pack, check_image
from provision.cluster.remote import NodeAnswer, run_action, run_with_data, transport
from provision.core.errors import TimedOut, ToolFailed, ToolMissing
from provision.core.process import run_in_threads
from provision.core.types import Progress
from provision.workflow.ship.stages import LATE_FACTOR
from provision.workflow.ship.states import TRANSIENT_REASONS
from provision.workflow.ship.waves import Service, plan_wave
from provision_runtime.report.text import format_bytes

STAGE = "ship"


# Copying, verifying and unpacking may be this slow before a node counts as late.
SLOWEST_BYTES_PER_S = 4 << 20
# The nodes that get the image from this machine at most, however many there are.
MOST_IMAGES_SENT = 3
# Nodes that fail while they receive it cost the others nothing, until there are so many.
MOST_FAILED_SENDS = 10
# A node stops serving when nobody has read anything for this time.
SERVE_IDLE_S = 60.0
# Above the ports that systems hand out to outgoing connections (32768 to 60999 on Linux).
PORTS = range(61000, 65536)
SEND_BYTES = 1 << 20
# What a node needs to know of a pack.
PACK_KEYS = ("name", "key", "format", "size", "sha256", "root")


def node_pack(pack: Pack) -> dict[str, Any]:
    """What every action on a node is told of a pack."""
    return {key: pack.sidecar[key] for key in PACK_KEYS}


@dataclass(frozen=True, kw_only=True)
class Transfers:
    """How an image is brought to nodes.

    run: what nodes are told of the run. tree: how many nodes fetch from one at the same time; 0:
    every node gets its copy from here. retries: after a failure that may pass.
    """

    pack: Pack
    run: Mapping[str, str]
    defaults: NodeDefaults
    tree: int
    retries: int
    deadline_s: float

    def time_limit_s(self, images: int = 1) -> float:
        """For as many images over one connection."""
        return self.deadline_s + images * self.pack.size / SLOWEST_BYTES_PER_S

    def arguments(self, **more: Any) -> dict[str, Any]:
        return {
            "path": str(self.defaults.path),
            "pack": node_pack(self.pack),
            "sidecar": dict(self.pack.sidecar),
            "run": dict(self.run),
            **more,
        }


class PackDistribution:
    """One image on its way. on_answer: gets the last answer of each node. is_stopped: asked between
    rounds."""

    def __init__(
        self,
        transfers: Transfers,
        progress: Progress,
        on_answer: Callable[[NodeAnswer], None],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._transfers, self._progress = transfers, progress
        self._on_answer, self._is_stopped = on_answer, is_stopped
        self._pack = transfers.pack
        self._lock = threading.Lock()
        self._tries: Counter[str] = Counter()
        self._is_source_checked = False
        self.sent_bytes = 0
        self.copies_between_nodes = 0

    def distribute(
        self,
        waiting: Sequence[Node],
        servers: Sequence[Node],
        statuses: Mapping[str, Mapping[str, Any]],
    ) -> None:
        """Bring the image to all waiting nodes. servers: those that have it.

        statuses: the latest answer to `store-status` of all of them.
        """
        if transport(waiting[0], self._transfers.defaults) == "srun":
            self._bring_by_slurm(waiting, statuses)
            return
        if self._transfers.tree == 0:
            self._send_to_all(waiting, statuses)
            return
        # What was begun is finished first: it takes the fewest bytes.
        ordered = sorted(waiting, key=lambda node: -statuses[node.name]["received"])
        queue, pool = list(ordered), list(servers)
        sent = failed = 0
        while queue and not self._is_stopped():
            if pool:
                queue = self._exchange(queue, pool, statuses)
            elif sent < MOST_IMAGES_SENT and failed < MOST_FAILED_SENDS:
                node = queue.pop(0)
                answer = self._send(node, statuses[node.name]["received"])
                self._on_answer(answer)
                if answer.failure is None:
                    sent += 1
                    pool.append(node)
                else:
                    failed += 1
            else:
                self._give_up(queue)
                return

    def _bring_by_slurm(
        self, waiting: Sequence[Node], statuses: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Inside an allocation: sbcast reaches all of its nodes at once; a few nodes get theirs over
        a step of their own."""
        allocated = set(clustershell.expand(slurm_nodes.allocation() or ""))
        is_whole = {node.name for node in waiting} == allocated
        if is_whole and len(waiting) > 1 and self._transfers.tree > 0:
            self._broadcast(waiting)
        elif len(waiting) <= MOST_IMAGES_SENT or self._transfers.tree == 0:
            self._send_to_all(waiting, statuses)
        else:
            names = slurm_host_list([node.name for node in waiting])
            self._fail_all(
                waiting, "no-server", f"sbcast reaches whole allocations only: salloc -w {names}"
            )

    def _broadcast(self, nodes: Sequence[Node]) -> None:
        arguments = {
            "path": str(self._transfers.defaults.path),
            "name": self._pack.name,
            "run": dict(self._transfers.run),
        }
        self._check_source()
        self._run_on(nodes, "store-prepare", arguments)
        self._progress.say(f"sbcast of {format_bytes(self._pack.size)} to {len(nodes)} nodes")
        part = part_path(str(self._transfers.defaults.path), node_pack(self._pack))
        problem = ""
        try:
            slurm_nodes.broadcast(self._pack.image, part, self._transfers.time_limit_s(len(nodes)))
        except (ToolFailed, ToolMissing, TimedOut) as error:
            problem = error.message
        self.sent_bytes += self._pack.size
        for answer in self._run_on(nodes, "store-verify", self._transfers.arguments()):
            if answer.failure is not None and answer.failure.reason == "not-here":
                failure = NodeFailure(stage=STAGE, reason="cut-off", message=f"sbcast: {problem}")
                answer = replace(answer, failure=failure)
            self._on_answer(answer)

    def _run_on(
        self, nodes: Sequence[Node], action: str, arguments: Mapping[str, Any]
    ) -> list[NodeAnswer]:
        return run_action(
            nodes,
            action,
            arguments,
            stage=STAGE,
            timeout_s=self._transfers.time_limit_s(),
            defaults=self._transfers.defaults,
        )

    def _give_up(self, nodes: Sequence[Node]) -> None:
        sent = format_bytes(self.sent_bytes)
        message = f"{sent} were sent from here, and no node could serve it to others"
        self._fail_all(nodes, "no-server", message)

    def _fail_all(self, nodes: Sequence[Node], reason: str, message: str) -> None:
        failure = NodeFailure(stage=STAGE, reason=reason, message=message)
        for node in nodes:
            self._on_answer(NodeAnswer(node=node, result=None, failure=failure))

    def _send_to_all(
        self, nodes: Sequence[Node], statuses: Mapping[str, Mapping[str, Any]]
    ) -> None:
        def send(node: Node) -> None:
            if not self._is_stopped():
                answer = self._send(node, statuses[node.name]["received"])
                with self._lock:
                    self._on_answer(answer)

        run_in_threads(send, nodes, self._transfers.defaults.fanout)

    def _send(self, node: Node, received: int) -> NodeAnswer:
        """Stream the rest of the image to one node over its own connection; try again after a
        failure that may pass, from where it stopped."""
        self._check_source()
        rest = format_bytes(self._pack.size - received)
        self._progress.say(f"sending {rest} to {node.name}")
        for attempt in range(self._transfers.retries + 1):
            answer = self._stream(node, received)
            failure = answer.failure
            if failure is None or failure.reason not in TRANSIENT_REASONS:
                break
            if attempt < self._transfers.retries:
                status = self._ask_status(node)
                if status is None:
                    break
                received = status["received"]
        return answer

    def _check_source(self) -> None:
        """Before the first byte is sent: our own disk may have damaged the image. Raises
        IntegrityError."""
        with self._lock:
            if not self._is_source_checked:
                check_image(self._pack)
            self._is_source_checked = True

    def _stream(self, node: Node, offset: int) -> NodeAnswer:
        def feed(descriptor: int) -> None:
            with self._pack.image.open("rb") as file:
                position = offset
                while count := os.sendfile(descriptor, file.fileno(), position, SEND_BYTES):
                    position += count
                    with self._lock:
                        self.sent_bytes += count

        return run_with_data(
            node,
            "store-receive",
            self._transfers.arguments(offset=offset),
            feed,
            stage=STAGE,
            timeout_s=self._transfers.time_limit_s(),
            defaults=self._transfers.defaults,
        )

    def _ask_status(self, node: Node) -> Mapping[str, Any] | None:
        arguments = {"path": str(self._transfers.defaults.path), "pack": node_pack(self._pack)}
        [answer] = self._run_on([node], "store-status", arguments)
        return answer.result

    def _exchange(
        self, queue: list[Node], pool: list[Node], statuses: Mapping[str, Mapping[str, Any]]
    ) -> list[Node]:
        """One round in which nodes of the pool serve nodes of the queue; the pool grows by those
        that succeeded. Returns the new queue."""
        nodes = {node.name: node for node in (*queue, *pool)}
        services = plan_wave(
            [node.name for node in pool],
            [node.name for node in queue],
            clients_each=self._transfers.tree,
            most_clients=self._transfers.defaults.fanout,
        )
        answers = self._run_round(services, nodes, statuses)
        clients = {client for service in services for client in service.clients}
        remaining = [node for node in queue if node.name not in clients]
        for service in services:
            server_failed = answers[service.server].failure is not None
            reached = False
            for client in service.clients:
                answer = answers[client]
                reached = reached or not _is_unreachable(answer)
                if self._is_worth_a_try(answer, server_failed):
                    remaining.append(nodes[client])
                    continue
                self._on_answer(answer)
                if answer.failure is None:
                    self.copies_between_nodes += 1
                    pool.append(nodes[client])
            if server_failed or not reached:
                pool.remove(nodes[service.server])
        # Those that have served least come first.
        served = {service.server for service in services}
        pool.sort(key=lambda node: node.name in served)
        return remaining

    def _is_worth_a_try(self, answer: NodeAnswer, server_failed: bool) -> bool:
        if answer.failure is None or answer.failure.reason not in TRANSIENT_REASONS:
            return False
        if not server_failed:
            self._tries[answer.node.name] += 1
        return self._tries[answer.node.name] <= self._transfers.retries

    def _run_round(
        self,
        services: Sequence[Service],
        nodes: Mapping[str, Node],
        statuses: Mapping[str, Mapping[str, Any]],
    ) -> dict[str, NodeAnswer]:
        """All of them run at the same time, the servers first."""
        arguments: dict[str, dict[str, Any]] = {}
        ports = random.sample(PORTS, len(services))
        for service, port in zip(services, ports):
            tokens = {client: secrets.token_hex(16) for client in service.clients}
            arguments[service.server] = {
                "role": "serve",
                "path": str(self._transfers.defaults.path),
                "pack": node_pack(self._pack),
                "port": port,
                "tokens": list(tokens.values()),
                "idle_s": SERVE_IDLE_S,
                "run": self._transfers.run,
            }
            server = {
                "node": service.server,
                "addresses": statuses[service.server]["addresses"],
                "port": port,
            }
            for client, token in tokens.items():
                arguments[client] = self._transfers.arguments(
                    role="fetch", server=server, token=token
                )
        servers = [service.server for service in services]
        participants = [*servers, *(name for name in arguments if name not in servers)]
        answers = run_action(
            [nodes[name] for name in participants],
            "store-exchange",
            lambda node: arguments[node.name],
            stage=STAGE,
            timeout_s=self._transfers.time_limit_s(max(self._transfers.tree, 1)),
            late_factor=LATE_FACTOR,
            defaults=replace(self._transfers.defaults, fanout=len(participants)),
        )
        return {answer.node.name: answer for answer in answers}


def part_path(store: str, pack: Mapping[str, Any]) -> str:
    """Where a node expects an image on its way; provision_runtime/node/store.py says the same, and
    a test compares them."""
    return f"{store}/staging/{pack['key']}.{pack['sha256'][:16]}.part"


def _is_unreachable(answer: NodeAnswer) -> bool:
    return answer.failure is not None and answer.failure.reason == "peer-unreachable"
