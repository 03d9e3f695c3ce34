"""torch's own record of the collectives of NCCL: asks for a dump through its pipe, and reads it.

The names of fields are those of FlightRecorder.hpp, versions 1.0 (torch 2.2) to 2.10 of the format.
"""

from __future__ import annotations

import os
import stat
import time
from typing import Any

from ..fs import data_pickle
from .model import Collective, Frame
from .stacks import frame_at
from .variables import DUMP_FILE, DUMP_PIPE, OLD_DUMP_FILE

MAX_CALLS = 64


def ask(environ: dict[str, str], rank: int, root: str) -> bool:
    """Ask a rank for a dump; False if it has no pipe, or nothing reads it. root: of its files."""
    prefix = environ.get(DUMP_PIPE)
    if not prefix:
        return False
    try:
        pipe = os.open(f"{root}{prefix}{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return stat.S_ISFIFO(os.fstat(pipe).st_mode) and os.write(pipe, b"1") == 1
    except OSError:
        return False
    finally:
        os.close(pipe)


def dump_path(environ: dict[str, str], rank: int, root: str) -> str:
    prefix = environ.get(DUMP_FILE) or environ.get(OLD_DUMP_FILE)
    return f"{root}{prefix}{rank}" if prefix else ""


def read(path: str, after: float, deadline: float, directory: str) -> list[Collective]:
    """The calls in a dump that was written after a time, the latest last.

    Raises OSError if there is none by the deadline (both as time.time()), ValueError for what is no
    dump.
    """
    content = b""
    while True:
        if os.path.exists(path) and os.stat(path).st_mtime >= after:
            with open(path, "rb") as file:
                previous, content = content, file.read()
            if content and content == previous:  # it is complete
                return parse(content, directory)
        if time.time() > deadline:
            raise FileNotFoundError(f"no dump of the flight recorder in {path}")
        time.sleep(0.1)


def parse(content: bytes, directory: str) -> list[Collective]:
    """Raises ValueError, which says what is wrong."""
    document = data_pickle.load(content)
    entries = document.get("entries") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise ValueError("a dump of the flight recorder without entries")
    try:
        return [_call(entry, directory) for entry in entries[-MAX_CALLS:]]
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"an entry of the flight recorder lacks {error}") from error


def _call(entry: dict[str, Any], directory: str) -> Collective:
    frames = [
        frame_at(frame["name"], frame["filename"], frame["line"], directory)
        for frame in entry.get("frames", ())
    ]
    sizes, dtypes = entry.get("input_sizes") or [[]], entry.get("input_dtypes") or [""]
    group = entry.get("process_group") or ("", "")
    line: Frame | None = next((frame for frame in frames if frame.is_user), None)
    return Collective(
        op=entry["profiling_name"].rpartition(":")[2],
        origin="flight recorder",
        sequence=entry.get("collective_seq_id", entry.get("seq_id")),
        group=str(group[1] or group[0]),
        shape=list(sizes[0]),
        dtype=str(dtypes[0]).lower(),
        line=line,
        is_complete=entry["state"] == "completed",
    )
