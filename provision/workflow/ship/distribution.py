"""An image on its way to many nodes: from here to a few, and from node to node to all others.

A node that has the whole image and verified it serves it to others, so at most three nodes get
it from this machine, however many there are.
"""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision.adapters.clustershell import fold
from provision.cluster import actions
from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import Node, Nodes
from provision.cluster.pack import Pack, check_image
from provision.cluster.remote import Arguments, NodeReply, run_action, split_replies
from provision.core.types import Progress
from provision.workflow.ship.stages import STRAGGLER_FACTOR, ShipRequest
from provision.workflow.ship.states import is_transient
from provision_runtime.node.results import StoreStatus
from provision_runtime.report.text import format_bytes

STAGE = "ship"
# Copying, verifying and unpacking may be this slow before a node counts as a straggler.
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


def plan_wave(
    servers: Nodes, waiting: Nodes, *, clients_per_server: int, most_clients: int
) -> dict[str, list[str]]:
    """The next round, by server: as many of the waiting nodes as can be served, spread over all
    servers, each by one of its own rack or zone if there is one.

    In each round every node that has the image serves a few that do not, so their number grows by a
    factor. most_clients: in a round, of all servers together.
    """
    count = min(len(waiting), clients_per_server * len(servers), most_clients)
    used = servers[:count]
    clients: dict[str, list[str]] = {server.name: [] for server in used}
    for client in waiting[:count]:
        free = [server for server in used if len(clients[server.name]) * len(used) < count]
        nearest = min(
            free,
            key=lambda server: (
                server.rack != client.rack,
                server.zone != client.zone,
                len(clients[server.name]),
            ),
        )
        clients[nearest.name].append(client.name)
    return clients


class PackDistribution:
    """One image on its way. arguments: of every action on it. on_reply: gets the last reply of each
    node."""

    def __init__(
        self,
        pack: Pack,
        request: ShipRequest,
        arguments: Arguments,
        progress: Progress,
        on_reply: Callable[[NodeReply[Any]], None],
    ) -> None:
        self._pack, self._request, self._arguments = pack, request, arguments
        self._defaults = request.selection.defaults
        self._progress, self._on_reply = progress, on_reply
        self._tries: Counter[str] = Counter()
        self.sent_bytes = 0
        self.copies_between_nodes = 0

    def distribute(
        self,
        waiting: Nodes,
        servers: Nodes,
        statuses: Mapping[str, StoreStatus],
    ) -> None:
        """Bring the image to all waiting nodes. servers: those that have it.

        statuses: the latest result of `store-status` of all of them.
        """
        pool = list(servers) if self._request.tree else []
        if not pool:
            check_image(self._pack)  # our own disk may have damaged it
        # What was begun is finished first: it takes the fewest bytes.
        queue = sorted(waiting, key=lambda node: -statuses[node.name]["received"])
        at_once = 1 if self._request.tree else self._defaults.fanout
        sent = failed = 0
        while queue:
            if pool:
                queue = self._exchange(queue, pool, statuses)
                continue
            if sent >= MOST_IMAGES_SENT or failed >= MOST_FAILED_SENDS:
                size = format_bytes(self.sent_bytes)
                message = f"{size} were sent from here, and no node could serve it to others"
                failure = NodeFailure(stage=STAGE, reason="no-server", message=message)
                for node in queue:
                    self._on_reply(NodeReply(node=node, result=None, failure=failure))
                return
            receivers, queue = queue[:at_once], queue[at_once:]
            rest = sum(self._pack.size - statuses[node.name]["received"] for node in receivers)
            names = fold([node.name for node in receivers])
            self._progress.info(f"sending {format_bytes(rest)} to {names}")
            for reply in self._send(receivers, statuses):
                self._on_reply(reply)
                if self._request.tree == 0:
                    continue
                if reply.failure is None:
                    sent += 1
                    pool.append(reply.node)
                else:
                    failed += 1

    def _time_limit_s(self, images: int = 1) -> float:
        """For as many images over one connection."""
        return self._request.deadline_s + images * self._pack.size / SLOWEST_BYTES_PER_S

    def _send(self, nodes: Nodes, statuses: Mapping[str, StoreStatus]) -> list[NodeReply[Any]]:
        """Stream the rest of the image to nodes, each over its own connection; try again after a
        failure that may pass, from where it stopped."""
        received = {node.name: statuses[node.name]["received"] for node in nodes}
        replies: dict[str, NodeReply[Any]] = {}
        waiting = list(nodes)
        for _ in range(self._request.retries + 1):
            latest = self._stream(waiting, received)
            replies.update((reply.node.name, reply) for reply in latest)
            status_replies = run_action(
                [reply.node for reply in latest if is_transient(reply.failure)],
                actions.STORE_STATUS,
                self._arguments,
                stage=STAGE,
                timeout_s=self._request.deadline_s,
                defaults=self._defaults,
            )
            results, _ = split_replies(status_replies)
            received = {name: status["received"] for name, status in results.items()}
            waiting = [node for node in waiting if node.name in received]
            if not waiting:
                break
        return [replies[node.name] for node in nodes]

    def _stream(self, nodes: Nodes, offsets: Mapping[str, int]) -> list[NodeReply[Any]]:
        return run_action(
            nodes,
            actions.STORE_RECEIVE,
            lambda node: {**self._arguments, "offset": offsets[node.name]},
            data=lambda node: self._pieces(offsets[node.name]),
            stage=STAGE,
            timeout_s=self._time_limit_s(),
            defaults=self._defaults,
        )

    def _pieces(self, offset: int) -> Iterator[bytes]:
        """The image from there on."""
        with self._pack.image.open("rb") as file:
            file.seek(offset)
            while piece := file.read(SEND_BYTES):
                yield piece
                self.sent_bytes += len(piece)

    def _exchange(
        self, queue: list[Node], pool: list[Node], statuses: Mapping[str, StoreStatus]
    ) -> list[Node]:
        """One round in which nodes of the pool serve nodes of the queue; the pool grows by those
        that succeeded. Returns the new queue."""
        nodes = {node.name: node for node in (*queue, *pool)}
        services = plan_wave(
            pool,
            queue,
            clients_per_server=self._request.tree,
            most_clients=self._defaults.fanout,
        )
        replies = self._run_round(services, nodes, statuses)
        remaining = [node for node in queue if node.name not in replies]
        for server, clients in services.items():
            server_failed = replies[server].failure is not None
            is_reachable = False
            for client in clients:
                failure = replies[client].failure
                is_reachable |= failure is None or failure.reason != "peer-unreachable"
                self._tries[client] += not server_failed
                if is_transient(failure) and self._tries[client] <= self._request.retries:
                    remaining.append(nodes[client])
                    continue
                self._on_reply(replies[client])
                if failure is None:
                    self.copies_between_nodes += 1
                    pool.append(nodes[client])
            if server_failed or not is_reachable:
                pool.remove(nodes[server])
        # Those that have served least come first.
        pool.sort(key=lambda node: node.name in services)
        return remaining

    def _run_round(
        self,
        services: Mapping[str, Sequence[str]],
        nodes: Mapping[str, Node],
        statuses: Mapping[str, StoreStatus],
    ) -> dict[str, NodeReply[Any]]:
        """All of them run at the same time, the servers first."""
        servers: dict[str, Arguments] = {}
        clients: dict[str, Arguments] = {}
        for (server, names), port in zip(services.items(), random.sample(PORTS, len(services))):
            tokens = {client: secrets.token_hex(16) for client in names}
            servers[server] = {
                **self._arguments,
                "role": "serve",
                "port": port,
                "tokens": list(tokens.values()),
                "idle_s": SERVE_IDLE_S,
            }
            for client, token in tokens.items():
                clients[client] = {
                    **self._arguments,
                    "role": "fetch",
                    "node": server,
                    "addresses": statuses[server]["addresses"],
                    "port": port,
                    "token": token,
                }
        arguments = {**servers, **clients}
        replies = run_action(
            [nodes[name] for name in arguments],
            actions.STORE_EXCHANGE,
            lambda node: arguments[node.name],
            stage=STAGE,
            timeout_s=self._time_limit_s(max(self._request.tree, 1)),
            straggler_factor=STRAGGLER_FACTOR,
            defaults=replace(self._defaults, fanout=len(arguments)),
        )
        return {reply.node.name: reply for reply in replies}
