"""An all-gather of JSON values without a collective: through the key-value store of the rendezvous.

Owns the store's connection and keys. It polls the store and never waits in it: in older releases
(seen in the source of 1.13) a wait that times out leaves an answer pending on the connection, and a
wait watches only one key.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .rank_names import name_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    IsFailure = Callable[[Any], bool]

# Public are the errors; the rest is what `ranks` is made of.
__all__ = ["RanksMissing", "StoreLost"]

ABSENT = "provision/absent"
# The server of torch 2.4 and later closes the connection of a client that sends more than 8 MiB
# at once (measured; libuv, the default).
MAX_VALUE_BYTES = 4 << 20
# How a value in several parts begins; no JSON text begins so.
PARTS = "parts "
FIRST_PAUSE_S = 0.0005
LONGEST_PAUSE_S = 0.02
# After the first failure the other ranks may still report theirs for this long, when the deadline
# is further away. A rank that hangs in a collective notices within watchdog.ASK_S +
# watchdog.PATIENCE_S that another one left, and then writes its last state.
GRACE_S = 4.5


def never(_: Any) -> bool:
    return False


class RanksMissing(Exception):
    """Some ranks did not answer.

    Args:
        name: The name of the exchange.
        ranks: The ranks that did not answer.
        payloads: What the others sent, by rank.
    """

    def __init__(self, name: str, ranks: Sequence[int], payloads: dict[int, Any]) -> None:
        super().__init__(f"{name_ranks(ranks)} did not answer at {name}")
        self.name = name
        self.ranks = list(ranks)
        self.payloads = payloads


class PhaseAbandoned(Exception):
    """Another rank left the phase with an error, which is the one to report."""

    def __init__(self, name: str, rank: int) -> None:
        super().__init__(f"{name_ranks([rank])} left the phase before {name}")


class StoreLost(Exception):
    """The process that hosts the store (rank 0, or torchrun's agent) is gone."""


class StoreClient:
    """JSON values under keys of a torch store, read without waiting."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._can_delete = hasattr(store, "delete_key")

    def set(self, key: str, payload: Any) -> None:
        """Writes a long value in parts, and the first part last: a reader of it finds the rest."""
        text = json.dumps(payload)
        first, *more = [
            text[at : at + MAX_VALUE_BYTES] for at in range(0, len(text), MAX_VALUE_BYTES)
        ]
        try:
            for number, part in enumerate(more, start=1):
                self._store.set(f"{key}/{number}", part)
            self._store.set(key, f"{PARTS}{len(more) + 1} {first}" if more else first)
        except RuntimeError as error:
            raise StoreLost(f"the store cannot be reached: {error}") from error

    def peek(self, key: str) -> Any:
        """The value, or None when the key is not set yet."""
        try:
            count, text = self._first_part(key)
            if text == ABSENT.encode():
                return None
            for number in range(1, count):
                text += self._read(f"{key}/{number}")
        except RuntimeError as error:
            raise StoreLost(f"the store cannot be reached: {error}") from error
        return json.loads(text)

    def delete(self, keys: Sequence[str]) -> None:
        """Removes keys, where this kind of store can; elsewhere they stay."""
        if not self._can_delete:
            return
        try:
            for key in keys:
                for part in range(1, self._first_part(key)[0]):
                    self._store.delete_key(f"{key}/{part}")
                self._store.delete_key(key)
        except (NotImplementedError, RuntimeError):
            # Some kinds of stores keep everything. A lost store is noticed at the next exchange.
            self._can_delete = False

    def _first_part(self, key: str) -> tuple[int, bytes]:
        """How many parts a value has, and the first."""
        text = self._read(key)
        if not text.startswith(PARTS.encode()):
            return 1, text
        count, _, text = text[len(PARTS) :].partition(b" ")
        return int(count), text

    def _read(self, key: str) -> bytes:
        """The bytes of a key, or ABSENT; never waits.

        compare_set with an expected value that no key has is such a read in every release, but it
        crashes Python 3.12 with SIGSEGV under torch 2.3.1 (tried). So it is used only if the store
        has no `check`.
        """
        if hasattr(self._store, "check"):
            return bytes(self._store.get(key)) if self._store.check([key]) else ABSENT.encode()
        return bytes(self._store.compare_set(key, ABSENT, ABSENT))


@dataclass
class StoreAllGather:
    """Gathers one payload of every rank, on every rank.

    All ranks must call it in the same order.
    """

    _client: StoreClient
    _rank: int
    _world_size: int
    _clock: Callable[[], float] = time.monotonic
    _sleep: Callable[[float], None] = time.sleep
    _count: int = 0
    _previous_topic: str = ""

    def exchange(self, name: str, payload: Any, timeout_s: float, abort_key: str = "") -> list[Any]:
        """All payloads in rank order. Raises RanksMissing on every rank when one did not answer in
        time.

        abort_key: a rank that gives up sets it to its number; the others then raise PhaseAbandoned.
        """
        self._count += 1
        topic = f"exchange/{self._count}/{name}"
        payloads = self._all_gather(name, topic, payload, timeout_s, abort_key)
        # All ranks are at this exchange, so none reads the keys of the previous one any more.
        # Without deleting them, weeks of training would fill the memory of the process with the
        # store.
        if self._rank == 0 and self._previous_topic:
            keys = [f"{self._previous_topic}/{rank}" for rank in range(self._world_size)]
            self._client.delete([*keys, f"{self._previous_topic}/all"])
        self._previous_topic = topic
        return payloads

    def exchange_once(
        self, name: str, payload: Any, timeout_s: float, is_failure: IsFailure = never
    ) -> list[Any]:
        """An exchange that happens once under its name, outside of the order of the others.

        Once `is_failure` is true of one payload, the other ranks have GRACE_S left to answer.
        """
        return self._all_gather(name, f"once/{name}", payload, timeout_s, "", is_failure)

    def leave(self, timeout_s: float) -> None:
        """Rank 0 waits until the others have left, since its process may host the store; the others
        return at once.
        """
        self._client.set(f"left/{self._rank}", True)
        if self._rank == 0:
            end = self._clock() + timeout_s
            for rank in range(self._world_size):
                self._wait_for_key(f"left/{rank}", end - self._clock())

    def _all_gather(
        self,
        name: str,
        topic: str,
        payload: Any,
        timeout_s: float,
        abort_key: str,
        is_failure: IsFailure = never,
    ) -> list[Any]:
        self._client.set(f"{topic}/{self._rank}", {"payload": payload})
        if self._rank == 0:
            collected = self._collect(name, topic, timeout_s, abort_key, is_failure)
            self._client.set(f"{topic}/all", collected)
        gathered = self._wait_for_key(f"{topic}/all", timeout_s + GRACE_S, name, abort_key)
        if gathered is None:
            raise RanksMissing(name, [0], {self._rank: payload})
        # JSON has made the ranks strings.
        payloads = {int(rank): value for rank, value in gathered.items()}
        missing = [rank for rank in range(self._world_size) if rank not in payloads]
        if missing:
            raise RanksMissing(name, missing, payloads)
        return [payloads[rank] for rank in range(self._world_size)]

    def _collect(
        self, name: str, topic: str, timeout_s: float, abort_key: str, is_failure: IsFailure
    ) -> dict[int, Any]:
        """What rank 0 reads until all ranks have answered or the time is over."""
        payloads: dict[int, Any] = {}
        end = self._clock() + timeout_s
        pause_s = FIRST_PAUSE_S
        while True:
            for rank in range(self._world_size):
                entry = None if rank in payloads else self._client.peek(f"{topic}/{rank}")
                if entry is not None:
                    payloads[rank] = entry["payload"]
                    if is_failure(payloads[rank]):
                        end = min(end, self._clock() + GRACE_S)
            if len(payloads) == self._world_size or self._clock() >= end:
                return payloads
            aborted_by = self._aborted_by(abort_key)
            if aborted_by is not None:
                raise PhaseAbandoned(name, aborted_by)
            pause_s = self._pause(pause_s)

    def _wait_for_key(self, key: str, timeout_s: float, name: str = "", abort_key: str = "") -> Any:
        """The value; None after the time-out."""
        end = self._clock() + timeout_s
        pause_s = FIRST_PAUSE_S
        while True:
            # In this order: a rank may leave the phase as soon as it has what this one waits for.
            aborted_by = self._aborted_by(abort_key)
            value = self._client.peek(key)
            if value is not None or self._clock() >= end:
                return value
            if aborted_by is not None:
                raise PhaseAbandoned(name, aborted_by)
            pause_s = self._pause(pause_s)

    def _aborted_by(self, abort_key: str) -> int | None:
        if not abort_key:
            return None
        rank: int | None = self._client.peek(abort_key)
        return None if rank == self._rank else rank

    def _pause(self, pause_s: float) -> float:
        """Sleeps; returns the next, longer pause."""
        self._sleep(pause_s)
        return min(pause_s * 2, LONGEST_PAUSE_S)


def negotiate_nonce(client: StoreClient, rank: int, world_size: int, timeout_s: float) -> str:
    """A new random name, the same on all ranks, in a store that may hold keys of earlier groups.

    Each rank sends rank 0 a random number, gets it back with the name, and confirms the name, so
    neither side can mistake an old key for a new one. Raises RanksMissing after the time-out.
    """
    token = secrets.token_hex(8)
    if rank:
        client.set(f"hello/{rank}", token)
    end = time.monotonic() + timeout_s
    pause_s = FIRST_PAUSE_S
    while True:
        if rank == 0:
            nonce = token
            missing = _welcome_ranks(client, world_size, token)
        else:
            # Rank 0 is missing while it has not answered.
            answered, nonce = client.peek(f"welcome/{rank}") or ("", "")
            missing = [] if answered == token else [0]
            if not missing:
                client.set(f"confirmed/{rank}", nonce)
        if not missing:
            return nonce
        if time.monotonic() >= end:
            raise RanksMissing("the first exchange", missing, {})
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


def _welcome_ranks(client: StoreClient, world_size: int, nonce: str) -> list[int]:
    """One round of rank 0: sends the name to all ranks that sent a number.

    Returns the ranks that have not confirmed the name yet.
    """
    missing = []
    for rank in range(1, world_size):
        if client.peek(f"confirmed/{rank}") != nonce:
            missing.append(rank)
            number = client.peek(f"hello/{rank}")
            if number is not None:
                client.set(f"welcome/{rank}", [number, nonce])
    return missing
