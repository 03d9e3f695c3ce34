"""One rank replaces a file again and again while the others read it: each must see the old content or the new one, whole."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from .... import fs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .work import Work

SIZE = 64 << 10
WORD = 8
GENERATIONS = 100
GENERATIONS_QUICK = 30
PAUSE_S = 0.002
# A reader that has not seen the last generation by then stops: how soon a file is seen is another step's question.
READ_LIMIT_S = 5.0


def step(work: Work, crew: Sequence[int]) -> None:
    if len(crew) < 2:
        return
    path = work.root / "replaced"
    is_writer, last = (
        work.rank == crew[0],
        GENERATIONS_QUICK if work.session.options.quick else GENERATIONS,
    )
    if is_writer:
        work.attempt("writing a file", lambda: fs.write_synced(path, content(0)))
    work.meet("first generation")
    if not is_writer and work.able:
        work.attempt("waiting for a file", lambda: fs.wait_until_visible(path, READ_LIMIT_S))
    if not work.meet("reading", work.able)[crew[0]]:
        return
    if is_writer:
        work.attempt("replacing a file", lambda: _replace(path, last))
    else:
        work.data["reads"] = work.attempt(
            "reading a file while it is replaced", lambda: read(path, last)
        )
    work.meet("replaced")


def content(generation: int) -> bytes:
    return generation.to_bytes(WORD, "little") * (SIZE // WORD)


def torn(found: bytes) -> str | None:
    """What is wrong with what a reader saw, or nothing."""
    if len(found) != SIZE:
        return f"{len(found)} of {SIZE} bytes"
    return (
        None
        if found == found[:WORD] * (SIZE // WORD)
        else "the old content and the new one in one file"
    )


def read(path: Path, last: int, limit_s: float = READ_LIMIT_S) -> dict[str, Any]:
    """Read until the last generation is there: how often, how many generations, and the first reading that was not whole."""
    end, count = time.monotonic() + limit_s, 0
    seen: set[bytes] = set()
    while time.monotonic() < end:
        try:
            found = fs.read_bytes(path)
        except FileNotFoundError:
            return {"count": count, "generations": len(seen), "torn": "no file"}
        wrong = torn(found)
        if wrong:
            return {"count": count, "generations": len(seen), "torn": wrong}
        count += 1
        seen.add(found[:WORD])
        if int.from_bytes(found[:WORD], "little") == last:
            break
        time.sleep(PAUSE_S / 4)
    return {"count": count, "generations": len(seen), "torn": None}


def _replace(path: Path, last: int) -> None:
    beside = path.with_name("beside")
    for generation in range(1, last + 1):
        beside.write_bytes(content(generation))
        os.replace(str(beside), str(path))
        time.sleep(PAUSE_S)
