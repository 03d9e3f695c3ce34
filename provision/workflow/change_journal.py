"""What an environment's files and prefix were before a change, until it is finished.

An error puts them back at once. After a kill the journal stays, and the next verb that changes the
environment puts them back.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from provision.core.atomic import atomic_write, remove_leftovers, remove_unfinished
from provision.core.json_text import parse_json
from provision.core.paths import Folders
from provision.core.types import Prefix, Progress
from provision.environment import prefix as prefixes


@contextlib.contextmanager
def all_or_nothing(
    folders: Folders, folder: Path, texts: Mapping[str, str], prefix: Prefix | None = None
) -> Iterator[None]:
    """What the block writes into an environment's folder, and the prefix that it makes, stay only
    if the block succeeds. The caller holds the environment's lock.

    texts: of the files, as they are to be. prefix: the present one, which `prefixes.create` is to
    leave in its backup.
    """
    journal = folders.change(folder.name)
    record: dict[str, Any] = {"folder": str(folder), "prefix": None, "files": {}}
    if prefix is not None:
        record["prefix"] = {"path": str(prefix.path), "lock_sha256": prefix.lock_sha256}
    for name, text in texts.items():
        before = _text(folder / name)
        if before != text:
            record["files"][name] = {"before": before, "after": text}
    atomic_write(journal, json.dumps(record))
    try:
        yield
    except BaseException:
        _put_back(record)
        journal.unlink()
        raise
    journal.unlink()
    if prefix is not None:
        remove_leftovers(prefix.path)


def is_unfinished(folders: Folders, name: str) -> bool:
    """Whether a change of this environment runs now, or was killed."""
    record = _read(folders.change(name))
    return record is not None and record["folder"] == str(folders.envs / name)


def take_back_killed_change(folders: Folders, name: str, progress: Progress) -> None:
    """Put back what a killed process changed. The caller holds the environment's lock.

    Files that somebody has edited since stay, all of them.
    """
    journal = folders.change(name)
    record = _read(journal)
    if record is not None:
        folder = Path(record["folder"])
        edited = [
            str(folder / file)
            for file, content in record["files"].items()
            if _text(folder / file) not in (content["before"], content["after"])
        ]
        if edited:
            progress.warn(
                f"a change of {name} was killed, and {', '.join(edited)} was edited since: all files "
                "stay as they are"
            )
        else:
            _put_back(record)
            progress.say(f"took back a change of {name} that was killed: all is as before it")
    journal.unlink(missing_ok=True)


def _read(journal: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = parse_json(journal.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return record


def _text(path: Path) -> str | None:
    return path.read_bytes().decode(errors="surrogateescape") if path.exists() else None


def _put_back(record: Mapping[str, Any]) -> None:
    if record["prefix"] is not None:
        path = Path(record["prefix"]["path"])
        prefixes.put_back(path, record["prefix"]["lock_sha256"])
    folder = Path(record["folder"])
    for name, content in record["files"].items():
        remove_unfinished(folder / name)
        if content["before"] is None:
            (folder / name).unlink(missing_ok=True)
        elif _text(folder / name) != content["before"]:
            atomic_write(folder / name, content["before"].encode(errors="surrogateescape"))
    with contextlib.suppress(OSError):  # it holds something else
        folder.rmdir()
