"""Do flock and fcntl locks keep a second rank out, let it in afterwards, and answer at all?

A lock on a file system whose lock service is gone waits in the kernel; so every call has a thread of its own, and a limit.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .work import Work

KINDS = ("flock", "fcntl")
LIMIT_S = 5.0
BUSY = (errno.EAGAIN, errno.EACCES)
GOT, REFUSED, SILENT = "got it", "refused", "no answer"


def step(work: Work, crew: Sequence[int]) -> None:
    """Four meetings: held by one, tried by another, let go, tried again."""
    if len(crew) < 2:
        return
    holder, peer = crew[0], _peer(crew, work.meet("hosts", work.session.place.host))
    said: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    files = (
        work.attempt("opening a lock file", lambda: _open(work))
        if work.rank in (holder, peer) and work.able
        else None
    )
    for turn, rank in (("held", holder), ("second", peer)):
        _take(work, rank, files, said, turn)
    if work.rank == holder and files:
        _let_go(files)
    work.meet("locks released")
    _take(work, peer, files, said, "after")
    _close(files)
    if work.rank in (holder, peer):
        work.data["locks"] = {"holder": holder, "peer": peer, "said": said}


def judge(said: dict[str, str]) -> str | None:
    """What is wrong with one kind of lock, from what holder and peer were told together."""
    for turn in ("held", "second", "after"):
        if said.get(turn) == SILENT:
            return f"did not answer within {LIMIT_S:g} s"
        if said.get(turn) not in (GOT, REFUSED, None):
            return f"is not supported: {said[turn]}"
    if said.get("held") == GOT and said.get("second") == GOT:
        return "protects nothing: a second rank got the lock while the first held it"
    if said.get("after") == REFUSED:
        return "is not let go: a second rank was refused after the first had released it"
    return None


def within(limit_s: float, action: Callable[[], str]) -> str:
    """What the action says, or that it did not answer; its thread is then left behind."""
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(action()), name="lock", daemon=True)
    thread.start()
    thread.join(limit_s)
    return said[0] if said else SILENT


def _peer(crew: Sequence[int], hosts: Sequence[str]) -> int:
    """A rank on another host, if there is one: a lock that only works within a host protects nothing."""
    return next((rank for rank in crew if hosts[rank] != hosts[crew[0]]), crew[1])


def _open(work: Work) -> dict[str, Any]:
    return {kind: open(str(work.root / f"lock.{kind}"), "ab+") for kind in KINDS}


def _take(
    work: Work, rank: int, files: dict[str, Any] | None, said: dict[str, dict[str, str]], turn: str
) -> None:
    if work.rank == rank and files:
        for kind in KINDS:
            said[kind][turn] = within(LIMIT_S, functools.partial(_try, kind, files[kind]))
    work.meet(f"locks {turn}")


def _try(kind: str, file: Any) -> str:
    take = fcntl.flock if kind == "flock" else fcntl.lockf
    try:
        take(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return GOT
    except OSError as error:
        return REFUSED if error.errno in BUSY else str(error.strerror)


def _let_go(files: dict[str, Any]) -> None:
    within(LIMIT_S, functools.partial(_quietly, fcntl.flock, files["flock"], fcntl.LOCK_UN))
    within(LIMIT_S, functools.partial(_quietly, fcntl.lockf, files["fcntl"], fcntl.LOCK_UN))


def _close(files: dict[str, Any] | None) -> None:
    for file in (files or {}).values():
        within(LIMIT_S, functools.partial(_quietly, file.close))


def _quietly(action: Callable[..., object], *arguments: object) -> str:
    """A lock that was never taken may refuse to be let go; that was said already."""
    try:
        return str(action(*arguments))
    except OSError as error:
        return str(error)
