"""Which nodes fetch an image from which, round by round. Pure.

In each round every node that has the image serves a few that do not, so their number grows by a
factor, and the machine that ships sends the image once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Service:
    """One node that serves others in a round."""

    server: str
    clients: tuple[str, ...]


def plan_wave(
    servers: Sequence[str], waiting: Sequence[str], *, clients_each: int, most_clients: int
) -> list[Service]:
    """The next round: as many of the waiting nodes as can be served, spread over all servers.

    clients_each: that one server serves at once. most_clients: in a round, of all servers together.
    """
    count = min(len(waiting), clients_each * len(servers), most_clients)
    clients_of: dict[str, list[str]] = {server: [] for server in servers[:count]}
    order = list(clients_of)
    for number, client in enumerate(waiting[:count]):
        clients_of[order[number % len(order)]].append(client)
    return [
        Service(server=server, clients=tuple(clients)) for server, clients in clients_of.items()
    ]
