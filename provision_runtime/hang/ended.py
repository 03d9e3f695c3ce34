"""Ranks that no longer run, by the files that the hook left of them."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import socket
import time
from typing import Any

from ..report.codec import decode
from . import folder
from .model import ENDED, FAILED, GONE, UNKNOWN, Rank, RankError, RankState
from .stacks import frame_at, parse_fault_handler, user_frame

CRASH = "Fatal Python error: "
# The ranks of a node start one after the other, on a loaded machine in seconds.
START_S = 20.0


def records() -> dict[str, Rank]:
    """All ranks of this user of which there are files, by the stem of their paths; the last that
    started first. Removes those of ranks that ended more than a day ago."""
    ranks: list[tuple[int, str, Rank]] = []
    try:
        directory = folder.ensure_folder()
        folder.remove_old_files(directory)
    except OSError:  # somebody else's
        return {}
    for path in glob.glob(f"{directory}/*.stacks"):
        stem = path[: -len(".stacks")]
        try:
            *numbers, start, job = os.path.basename(stem).split(",")
            cwd = _text(path).partition("\n")[0]
            fields: Any = (*map(int, numbers), job, socket.gethostname(), cwd)
            ranks.append((int(start), stem, Rank(*fields)))
        except (OSError, ValueError, TypeError):  # it was just removed, or is not ours
            continue
    return {stem: rank for _, stem, rank in sorted(ranks, reverse=True)}


def is_older(stem: str, pid: int) -> bool:
    """Whether a rank on record started before the process that has this number now: that is another
    one than the rank's, because numbers are used again."""
    try:
        return int(stem.split(",")[-2]) < int(folder.start_time(pid))
    except OSError:  # it has ended
        return False


def missing(running: list[RankState], ended: dict[str, Rank]) -> list[RankState]:
    """The ranks that should run on this node and do not: those on record, and by torchrun's numbers."""
    states = {(state.job, state.rank): state for state in running}
    for stem, rank in ended.items():
        if (rank.job, rank.rank) not in states:
            states[rank.job, rank.rank] = _ended(stem, rank)
    for state in running:
        first = state.rank - state.local_rank
        for number in range(first, first + state.local_size):
            identity = {**vars(state), "rank": number, "local_rank": number - first, "pid": 0}
            kind, detail = GONE, "no longer runs"
            if folder.age(state.pid) < START_S:
                kind, detail = UNKNOWN, "has not started yet, or is gone already"
            fields = {name: identity[name] for name in Rank.__dataclass_fields__}
            states.setdefault((state.job, number), RankState(**fields, kind=kind, detail=detail))
    return list(states.values())[len(running) :]


def _ended(stem: str, rank: Rank) -> RankState:
    if failure := error(stem, rank):
        detail = f"{failure.type}: {' '.join(failure.message.split())}"
        return RankState(
            **vars(rank), kind=FAILED, detail=detail, line=user_frame(failure.frames), error=failure
        )
    kind, detail = GONE, "ended by a signal from outside, or by os._exit"
    with contextlib.suppress(OSError):
        is_same = f",{rank.pid},{folder.start_time(rank.pid)}," in stem
        if is_same and not re.search(r"\) [ZX] ", _text(f"/proc/{rank.pid}/stat")):
            kind = UNKNOWN
            detail = "runs, but this user may not examine it (PR_SET_DUMPABLE, or a setuid program)"
    if os.path.exists(f"{stem}.ended"):
        at = time.localtime(os.stat(f"{stem}.ended").st_mtime)
        kind, detail = ENDED, f"came to its end at {time.strftime('%H:%M:%S', at)}"
    return RankState(**vars(rank), kind=kind, detail=detail)


def error(stem: str, rank: Rank) -> RankError | None:
    """The first exception of a rank and of what it had started, else the crash that faulthandler wrote
    down. Raises OSError if its files are gone."""
    paths = glob.glob(f"{glob.escape(stem)}*.error")
    errors = [_read_error(path, rank.directory) for path in paths]
    first = min(filter(None, errors), key=lambda error: error.time, default=None)
    if first:
        return first
    _, is_crash, crash = _text(f"{stem}.stacks").rpartition(CRASH)
    if not is_crash:
        return None
    frames = parse_fault_handler(crash, rank.directory)[-1].frames
    ended = os.stat(f"{stem}.stacks").st_mtime
    return RankError(type="crash", message=crash.split("\n")[0], time=ended, frames=frames)


def _read_error(path: str, directory: str) -> RankError | None:
    """None for what the hook did not write. Raises OSError."""
    try:
        document = json.loads(_text(path))
        frames = [
            vars(frame_at(str(function), str(file), int(line), directory))
            for function, file, line in document["frames"]
        ]
        error: RankError = decode(RankError, {**document, "frames": frames}, "error")
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return error


def _text(path: str) -> str:
    return folder.read(path).decode(errors="replace")
