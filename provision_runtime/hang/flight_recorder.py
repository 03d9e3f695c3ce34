"""torch's own record of the collectives of NCCL: asks for a dump through its pipe, and reads it.

The names of fields are those of TraceUtils.h and FlightRecorder.hpp, compared with versions 2.0 and 2.4
of the format, and with a dump of version 2.10 (torch 2.11). Those of 1.x (torch 2.2) are from memory.
"""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING, Any

from ..fs import data_pickle
from . import folder
from .model import FLIGHT_RECORDER, Collective
from .stacks import frame_at, user_frame
from .variables import DUMP_FILE, DUMP_PIPE, OLD_DUMP_FILE

if TYPE_CHECKING:
    from .processes import RankProcess

MAX_CALLS = 64


def ask(process: RankProcess) -> str:
    """Ask a rank for a dump: the path where it will be; empty if it has no pipe that is read."""
    environ, number = process.environ, process.rank.rank
    prefix = environ.get(DUMP_FILE) or environ.get(OLD_DUMP_FILE)
    try:
        path = f"{process.root}{environ[DUMP_PIPE]}{number}.pipe"
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(pipe, "wb", buffering=0) as file:
            if prefix and stat.S_ISFIFO(os.fstat(pipe).st_mode):
                file.write(b"1")
                return f"{process.root}{prefix}{number}"
    except (OSError, KeyError):
        pass
    return ""


def read(path: str, after: float, deadline: float, directory: str) -> list[Collective]:
    """The calls in a dump that was written after a time, the latest last.

    Raises OSError if there is none by the deadline (both as time.time()), ValueError for what is no
    dump.
    """
    while not os.path.exists(path) or os.stat(path).st_mtime < after:
        if time.time() > deadline:
            raise FileNotFoundError(f"no dump of the flight recorder in {path}")
        time.sleep(0.1)
    size = -1
    while size != os.path.getsize(path):  # it is being written
        size = os.path.getsize(path)
        time.sleep(0.1)
    return parse(folder.read(path), directory)


def parse(content: bytes, directory: str) -> list[Collective]:
    """Raises ValueError, which says what is wrong."""
    document = data_pickle.load(content)
    entries = document.get("entries") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise ValueError("a dump of the flight recorder without entries")
    try:
        return [_call(entry, directory) for entry in entries[-MAX_CALLS:]]
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"an entry of the flight recorder lacks {error}") from error


def _call(entry: dict[str, Any], directory: str) -> Collective:
    frames = [
        frame_at(frame["name"], frame["filename"], frame["line"], directory)
        for frame in entry.get("frames", ())
    ]
    seq_id: Any = entry.get("seq_id")  # before version 2.0
    return Collective(
        op=entry["profiling_name"].rpartition(":")[2],
        origin=FLIGHT_RECORDER,
        # send and recv have numbers of their own, by pairs of ranks (p2p_seq_id).
        sequence=None if entry.get("is_p2p") else int(entry.get("collective_seq_id", seq_id)),
        group=str(entry.get("process_group", ("", ""))[1]),
        shape=list(map(int, [*entry["input_sizes"], []][0])),
        dtype=str([*entry.get("input_dtypes", ()), ""][0]).lower(),
        line=user_frame(frames),
        is_complete=entry["state"] == "completed",
    )
