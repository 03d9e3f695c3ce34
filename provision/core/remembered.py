"""What was made of a text before, in the user's cache: a lock that was read and checked, a file that
was rendered. Libraries that do this take 20 to 40 ms to import."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from provision import __version__
from provision.core.atomic import atomic_write
from provision.core.credentials import public_document
from provision.core.paths import Folders, default_folders, make_private_directory

# The code that makes results, and what it reads of ours.
PARTS = ("core", "environment", "lockfile", "render", "resolver", "schemas")


def remembered(
    kind: str,
    place: object,
    content: bytes,
    make: Callable[[], Any],
    folders: Folders | None = None,
) -> Any:
    """What `make` makes of a text, and of nothing else.

    Args:
        kind: of the result.
        place: what the text is of, such as its file. The last result of each is kept.
        content: the text.
        make: called where the text or our code is another than before. What it raises is raised. A
            result that JSON cannot hold, or that has a password or token in an address, is not kept.
        folders: their cache keeps results, if it exists: a preview in a new account leaves nothing.
            The user's by default. Records of other users and damaged ones do not count.
    """
    folder = (folders or default_folders()).remembered
    record = folder / hashlib.sha256(os.fsencode(f"{kind} {place}")).hexdigest()
    with suppress(OSError, ValueError):
        stamp, _, text = record.read_text(encoding="utf-8").partition(" ")
        if stamp == _stamp(content, text) and record.lstat().st_uid == os.getuid():
            return json.loads(text)
    result = make()
    with suppress(OSError, ValueError, TypeError):
        text = json.dumps(result)
        if public_document(result) == result == json.loads(text) and folder.parent.is_dir():
            make_private_directory(folder)
            atomic_write(record, f"{_stamp(content, text)} {text}", 0o600)
    return result


def _stamp(content: bytes, text: str) -> str:
    """A hash of all that decides about a result, and of the result."""
    digest = hashlib.sha256(content).hexdigest()
    return hashlib.sha256(f"{__version__} {_code()} {digest} {text}".encode()).hexdigest()


@cache
def _code() -> int:
    """When the files of PARTS were written, as this process first finds them, and how long they are:
    some installers give all files one time."""
    entries = (entry for part in PARTS for entry in os.scandir(Path(__file__).parents[1] / part))
    files = [entry.stat() for entry in entries if entry.is_file()]
    return sum(file.st_mtime_ns + file.st_size for file in files)
