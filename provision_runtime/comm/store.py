"""How ranks agree on something without a collective: through the store of the rendezvous.

Owns the store's connection and keys. It is polled, never waited on: a blocking wait that times out leaves the
connection of older releases (seen in the source of 1.13) with an answer still to come, and cannot look at two keys.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import TYPE_CHECKING, Any

from ..smoke.outcome import name_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ABSENT = "provision/absent"
# The server of torch 2.4 and later ends the connection of who sends more than 8 MiB at once (seen; libuv, the default).
LONGEST = 4 << 20
# How a payload in several parts begins; no JSON does.
PARTS = "parts "
FIRST_PAUSE_S = 0.0005
LONGEST_PAUSE_S = 0.02
# How long after the first bad news the other ranks may still say theirs, when a deadline is far away.
# A rank that hangs in a collective notices within watchdog.ASK_S + watchdog.PATIENCE_S that another one left, and then leaves its word.
GRACE_S = 4.5


class RanksMissing(Exception):
    """Ranks that did not answer; `payloads` holds what the others said, by rank."""

    def __init__(self, name: str, ranks: Sequence[int], payloads: dict[int, Any]) -> None:
        super().__init__(f"{name_ranks(ranks)} did not answer at {name}")
        self.name = name
        self.ranks = list(ranks)
        self.payloads = payloads


class PhaseAbandoned(Exception):
    """A rank left the phase with an error of its own, which is the one to be reported."""

    def __init__(self, name: str, rank: int) -> None:
        super().__init__(f"{name_ranks([rank])} left the phase before {name}")


class StoreLost(Exception):
    """The process that hosts the store (rank 0, or torchrun's agent) is gone."""


class GroupBroken(StoreLost):
    """A collective that the ranks meet in failed, as it does where a rank is gone; it does not tell which."""


class Mailbox:
    """JSON under keys of the store, read without waiting."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._can_forget = hasattr(store, "delete_key")

    def post(self, key: str, payload: Any) -> None:
        """Long ones in parts, the first last: whoever sees it finds the others."""
        text = json.dumps(payload)
        parts = [text[begin : begin + LONGEST] for begin in range(0, len(text), LONGEST)]
        try:
            for number, part in list(enumerate(parts))[1:]:
                self._store.set(f"{key}/{number}", part)
            self._store.set(key, parts[0] if len(parts) == 1 else f"{PARTS}{len(parts)} {parts[0]}")
        except RuntimeError as error:
            raise StoreLost(f"the store cannot be reached: {error}") from error

    def peek(self, key: str) -> Any:
        """The payload, or None when nothing was posted yet."""
        try:
            text = self._read(key)
        except RuntimeError as error:
            raise StoreLost(f"the store cannot be reached: {error}") from error
        if not text.startswith(PARTS.encode()):
            return None if text == ABSENT.encode() else json.loads(text)
        count, _, first = text[len(PARTS) :].partition(b" ")
        return json.loads(
            first + b"".join(self._part(f"{key}/{number}") for number in range(1, int(count)))
        )

    def _part(self, key: str) -> bytes:
        try:
            return self._read(key)
        except RuntimeError as error:
            raise StoreLost(f"the store cannot be reached: {error}") from error

    def forget(self, keys: Sequence[str]) -> None:
        """Take keys out of the store, where its kind can."""
        try:
            for key in keys if self._can_forget else ():
                for part in range(1, self._parts_of(key)):
                    self._store.delete_key(f"{key}/{part}")
                self._store.delete_key(key)
        except (
            NotImplementedError,
            RuntimeError,
        ):  # some kinds of stores keep everything; a lost one is noticed at the next meeting
            self._can_forget = False

    def _parts_of(self, key: str) -> int:
        """How many keys hold it."""
        text = self._read(key)
        return int(text[len(PARTS) :].partition(b" ")[0]) if text.startswith(PARTS.encode()) else 1

    def _read(self, key: str) -> bytes:
        """A read that never waits. compare_set with an expected value that no key has is one in every release, but it ends
        Python 3.12 with SIGSEGV under torch 2.3.1 (tried), so where the store can be asked whether a key is there, it is asked."""
        if hasattr(self._store, "check"):
            return bytes(self._store.get(key)) if self._store.check([key]) else ABSENT.encode()
        return bytes(self._store.compare_set(key, ABSENT, ABSENT))


class Meeting:
    """Every rank says something and learns what all said. All ranks must meet in the same order."""

    def __init__(
        self,
        mailbox: Mailbox,
        rank: int,
        world_size: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._mailbox = mailbox
        self._rank = rank
        self._world_size = world_size
        self._clock = clock
        self._sleep = sleep
        self._count = 0
        self._last = ""

    def exchange(
        self,
        name: str,
        payload: Any,
        timeout_s: float,
        is_bad_news: Callable[[Any], bool] = lambda _: False,
        unless: str = "",
    ) -> list[Any]:
        """All payloads in rank order. Raises RanksMissing on every rank when one did not answer in time.

        After bad news from one rank the others have GRACE_S left to answer. unless: a key under which a rank may say
        that it will not come; then PhaseAbandoned is raised. When all have come, the keys of the meeting before go: nobody
        reads them any more, and a training that lasts for weeks must not fill the memory of the process that hosts the store.
        """
        self._count += 1
        topic = f"meeting/{self._count}/{name}"
        said = self._meet(name, topic, payload, timeout_s, is_bad_news, unless)
        if self._rank == 0 and self._last:
            self._mailbox.forget(
                [f"{self._last}/{who}" for who in (*range(self._world_size), "all")]
            )
        self._last = topic
        return said

    def agree(
        self,
        name: str,
        payload: Any,
        timeout_s: float,
        is_bad_news: Callable[[Any], bool] = lambda _: False,
    ) -> list[Any]:
        """An exchange that happens once under its name, however many others this rank went through before."""
        return self._meet(name, f"agreed/{name}", payload, timeout_s, is_bad_news, "")

    def _meet(
        self,
        name: str,
        topic: str,
        payload: Any,
        timeout_s: float,
        is_bad_news: Callable[[Any], bool],
        unless: str,
    ) -> list[Any]:
        self._mailbox.post(f"{topic}/{self._rank}", {"said": payload})
        if self._rank == 0:
            self._mailbox.post(
                f"{topic}/all", self._gather(name, topic, timeout_s, is_bad_news, unless)
            )
        minutes = self._await(f"{topic}/all", timeout_s + GRACE_S, name, unless)
        if minutes is None:
            raise RanksMissing(name, [0], {self._rank: payload})
        said = {int(rank): what for rank, what in minutes.items()}
        missing = [rank for rank in range(self._world_size) if rank not in said]
        if missing:
            raise RanksMissing(name, missing, said)
        return [said[rank] for rank in range(self._world_size)]

    def leave(self, timeout_s: float) -> None:
        """Rank 0 stays until the others have left, since its process may host the store; nobody else waits."""
        self._mailbox.post(f"left/{self._rank}", True)
        if self._rank == 0:
            end = self._clock() + timeout_s
            for rank in range(self._world_size):
                self._await(f"left/{rank}", end - self._clock())

    def _gather(
        self,
        name: str,
        topic: str,
        timeout_s: float,
        is_bad_news: Callable[[Any], bool],
        unless: str,
    ) -> dict[int, Any]:
        said: dict[int, Any] = {}
        end = self._clock() + timeout_s
        pause = FIRST_PAUSE_S
        while True:
            for rank in range(self._world_size):
                heard = None if rank in said else self._mailbox.peek(f"{topic}/{rank}")
                if heard is not None:
                    said[rank] = heard["said"]
                    end = min(end, self._clock() + GRACE_S) if is_bad_news(said[rank]) else end
            if len(said) == self._world_size or self._clock() >= end:
                return said
            gone = self._abandoned_by(unless)
            if gone is not None:
                raise PhaseAbandoned(name, gone)
            pause = self._rest(pause)

    def _await(self, key: str, timeout_s: float, name: str = "", unless: str = "") -> Any:
        end = self._clock() + timeout_s
        pause = FIRST_PAUSE_S
        while True:
            # Asked in this order: a rank may leave the phase as soon as it has what this one still waits for.
            gone = self._abandoned_by(unless)
            heard = self._mailbox.peek(key)
            if heard is not None or self._clock() >= end:
                return heard
            if gone is not None:
                raise PhaseAbandoned(name, gone)
            pause = self._rest(pause)

    def _abandoned_by(self, unless: str) -> int | None:
        rank: int | None = self._mailbox.peek(unless) if unless else None
        return None if rank == self._rank else rank

    def _rest(self, pause: float) -> float:
        self._sleep(pause)
        return min(pause * 2, LONGEST_PAUSE_S)


def introduce(
    mailbox: Mailbox,
    rank: int,
    world_size: int,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """A new name, the same on all ranks, though the mailbox may hold whatever earlier ranks left there. Raises RanksMissing.

    Each rank shows rank 0 a number that is new, gets it back with the name, and confirms the name: neither can take old words
    for new ones.
    """
    own = secrets.token_hex(8)
    if rank:
        mailbox.post(f"hello/{rank}", own)
    end, pause = clock() + timeout_s, FIRST_PAUSE_S
    while True:
        name, absent = _welcomed(mailbox, rank, own) if rank else _welcome(mailbox, world_size, own)
        if not absent:
            return name
        if clock() >= end:
            raise RanksMissing("the first meeting", absent, {})
        sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE_S)


def _welcome(mailbox: Mailbox, world_size: int, name: str) -> tuple[str, list[int]]:
    """What rank 0 does again and again; who has not confirmed the name yet."""
    absent = [rank for rank in range(1, world_size) if mailbox.peek(f"confirmed/{rank}") != name]
    for rank in absent:
        number = mailbox.peek(f"hello/{rank}")
        if number is not None:
            mailbox.post(f"welcome/{rank}", [number, name])
    return name, absent


def _welcomed(mailbox: Mailbox, rank: int, number: str) -> tuple[str, list[int]]:
    """What the others do."""
    said = mailbox.peek(f"welcome/{rank}")
    if said is None or said[0] != number:
        return "", [0]
    mailbox.post(f"confirmed/{rank}", said[1])
    return said[1], []
