"""Files of a store: replaced by one rename, on the disk before and after it.

Paths are plain text, because importing pathlib takes half as long as starting Python, and a ship
without changes runs this on every node.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any


def read_json(path: str) -> dict[str, Any] | None:
    """A document that we wrote; None if there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def write_json(path: str, document: Mapping[str, object]) -> None:
    """Replace a document; it is on the disk when this returns."""
    write_text(path, f"{path}.new", json.dumps(document, sort_keys=True) + "\n")


def write_text(path: str, staged: str, text: str) -> None:
    """Replace a file by one that was written at `staged`. What is there already, of a killed run,
    or a link that somebody else put there, is removed and not written to."""
    remove_file(staged)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(staged, flags, 0o644), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(staged, path)
    sync_directory(os.path.dirname(path))


def write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def remove_file(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_tree(path: str) -> None:
    """Remove a folder with all that is in it; of a link only the link."""
    import shutil  # most actions do not need it

    if os.path.islink(path):
        remove_file(path)
    elif os.path.lexists(path):
        shutil.rmtree(path)


def sync_directory(path: str) -> None:
    """Make the names in a directory durable. Some network file systems cannot."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
