"""Ranks that no longer run, by the files that the hook left of them."""

from __future__ import annotations

import glob
import json
import os
import socket
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import folder, model
from .model import RankError, RankState
from .stacks import frame_at, main_thread, parse_fault_handler, user_frame

if TYPE_CHECKING:
    from .processes import RankProcess

CRASH = "Fatal Python error: "


@dataclass(frozen=True)
class RankRecord:
    """A rank's NAME.rank file, or that of a process which a rank started. stem: of its files;
    launcher: the process that started the rank."""

    stem: str
    pid: int
    rank: int
    world_size: int
    local_rank: int
    job: str
    launcher: int
    is_child: bool
    directory: str
    time: float

    def error(self) -> RankError | None:
        """Its exception, else the crash that faulthandler wrote down."""
        document = _json(f"{self.stem}.error")
        if document:
            frames = [frame_at(**frame, directory=self.directory) for frame in document["frames"]]
            kind, message, ended = document["type"], document["message"], document["time"]
            return RankError(type=kind, message=message, time=ended, frames=frames)
        try:
            with open(f"{self.stem}.stacks", encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            return None
        crash = text.rpartition(CRASH)
        if not crash[1]:
            return None
        frames = main_thread(parse_fault_handler(crash[2], self.directory)).frames
        ended = os.stat(f"{self.stem}.stacks").st_mtime
        return RankError(type="crash", message=crash[2].split("\n")[0], time=ended, frames=frames)


def records() -> list[RankRecord]:
    """All processes on record, of this user."""
    directory = folder.rank_folder()
    if not folder.is_private(directory, os.getuid()):
        return []
    found = []
    for path in glob.glob(f"{directory}/*.rank"):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                rank, size, local_rank, master, _, parent, is_child, cwd = file.read().split("\n")
            record = RankRecord(
                stem=path[: -len(".rank")],
                pid=int(os.path.basename(path).partition("-")[0]),
                rank=int(rank or local_rank),
                world_size=int(size),
                local_rank=int(local_rank or 0),
                job=master,
                launcher=int(parent),
                is_child=is_child == "1",
                directory=cwd,
                time=os.stat(path).st_mtime,
            )
        except (OSError, ValueError):  # it was just removed, or is not ours
            continue
        found.append(record)
    launchers = {record.pid: record.launcher for record in found if not record.is_child}
    return [
        replace(record, launcher=launchers.get(record.launcher, record.launcher))
        if record.is_child
        else record
        for record in found
    ]


def states(
    running: list[RankState], ranks: list[RankProcess], records: list[RankRecord]
) -> list[RankState]:
    """The ranks that should run on this node and do not, by torchrun's numbers and the records."""
    known = {(state.job, state.rank) for state in running}
    ended: dict[tuple[str, int], list[RankRecord]] = {}
    for record in records:
        if (record.job, record.rank) not in known:
            ended.setdefault((record.job, record.rank), []).append(record)
    result = [_from_records(group) for group in ended.values()]
    for process in ranks:
        first = process.rank - process.local_rank
        for rank in range(first, first + process.local_size):
            if (process.job, rank) not in {*known, *ended}:
                known.add((process.job, rank))
                result.append(_state(process, rank, model.GONE, "no longer runs"))
    return result


def _from_records(records: list[RankRecord]) -> RankState:
    """How a rank ended, by its own files and those of the processes that it started."""
    rank = next((record for record in records if not record.is_child), records[0])
    errors = [error for record in records if (error := record.error())]
    error = min(errors, key=lambda error: error.time, default=None)
    if error:
        shapes = next(filter(None, (parameters(f"{r.stem}.error") for r in records)), {})
        text = f"{error.type}: {error.message}"
        return _state(rank, rank.rank, model.FAILED, text, error, shapes)
    detail = "was ended from outside, or by os._exit"
    if os.path.exists(f"{rank.stem}.ended"):
        at = os.stat(f"{rank.stem}.ended").st_mtime
        detail = f"{model.ENDED} at {time.strftime('%H:%M:%S', time.localtime(at))}"
    return _state(rank, rank.rank, model.GONE, detail)


def _state(
    process: RankProcess | RankRecord,
    rank: int,
    kind: str,
    detail: str,
    error: RankError | None = None,
    parameters: dict[str, list[int]] | None = None,
) -> RankState:
    return RankState(
        rank=rank,
        world_size=process.world_size,
        local_rank=rank - process.rank + process.local_rank,
        host=socket.gethostname(),
        pid=process.pid if isinstance(process, RankRecord) else 0,
        job=process.job,
        kind=kind,
        detail=detail,
        line=user_frame(error.frames) if error else None,
        error=error,
        parameters=parameters or {},
    )


def parameters(path: str) -> dict[str, list[int]]:
    """Names and shapes in a NAME.model or NAME.error file."""
    document = _json(path)
    shapes: dict[str, list[int]] = document.get(
        "parameters", {} if "type" in document else document
    )
    return shapes


def _json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            document: dict[str, Any] = json.load(file)
            return document
    except (OSError, ValueError):
        return {}
