"""What an environment's files and prefix were before a change, until it is finished.

An error puts them back at once. After a kill the journal stays, and the next verb that changes the
environment puts them back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from provision.core.atomic import atomic_write, remove_leftovers, remove_unfinished
from provision.core.dataclass import frozen
from provision.core.file_locks import environment_lock
from provision.core.paths import Folders
from provision.core.records import parse_record
from provision.core.types import Prefix, Progress
from provision.environment import marker


@frozen
class FileChange:
    """before: None if there was no file."""

    before: str | None
    after: str


@frozen
class UnfinishedChange:
    """The journal. prefix: the path of the one that is replaced, which is of prefix_lock_sha256."""

    folder: str
    files: Mapping[str, FileChange]
    prefix: str | None = None
    prefix_lock_sha256: str = ""


@contextmanager
def all_or_nothing(
    folders: Folders, folder: Path, texts: Mapping[str, str], prefix: Prefix | None = None
) -> Iterator[None]:
    """What the block writes into an environment's folder, and the prefix that it makes, stay only
    if the block succeeds. The caller holds the environment's lock.

    texts: of the files, as they are to be. prefix: the present one, which `prefixes.create` is to
    leave in its backup.
    """
    journal = folders.change(folder.name)
    files = {}
    for name, text in texts.items():
        before = _text(folder / name)
        if before != text:
            files[name] = FileChange(before=before, after=text)
    change = UnfinishedChange(folder=str(folder), files=files)
    if prefix is not None:
        change = replace(change, prefix=str(prefix.path), prefix_lock_sha256=prefix.lock_sha256)
    atomic_write(journal, json.dumps(asdict(change)))
    try:
        yield
    except BaseException:
        _put_back(change)
        journal.unlink()
        raise
    journal.unlink()
    if prefix is not None:
        remove_leftovers(prefix.path)


def is_unfinished(folders: Folders, name: str) -> bool:
    """Whether a change of this environment runs now, or was killed."""
    change = _read(folders.change(name))
    return change is not None and change.folder == str(folders.envs / name)


def take_back_killed_change(folders: Folders, name: str, progress: Progress) -> None:
    """Put back what a killed process changed. The caller holds the environment's lock.

    Files that somebody has edited since stay, all of them.
    """
    journal = folders.change(name)
    change = _read(journal)
    if change is not None:
        edited = []
        for name_in_folder, content in change.files.items():
            file = Path(change.folder) / name_in_folder
            if _text(file) not in (content.before, content.after):
                edited.append(str(file))
        if edited:
            if change.prefix and marker.read(Path(change.prefix)) is None:
                _put_back(replace(change, files={}))
            progress.warn(
                f"a change of {name} was killed, and {', '.join(edited)} was edited since: all files "
                "stay as they are"
            )
        else:
            _put_back(change)
            progress.info(f"took back a change of {name} that was killed: all is as before it")
    journal.unlink(missing_ok=True)


def heal_prefixes(folders: Folders, progress: Progress) -> None:
    """Take back killed changes that left a prefix between old and new, which has no marker then."""
    for journal in folders.change("*").parent.glob("*.json"):
        change = _read(journal)
        if change is None or change.prefix is None or marker.read(Path(change.prefix)):
            continue
        with environment_lock(folders, journal.stem, progress):
            take_back_killed_change(folders, journal.stem, progress)


def _read(journal: Path) -> UnfinishedChange | None:
    try:
        return parse_record(UnfinishedChange, journal.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def _text(path: Path) -> str | None:
    return path.read_bytes().decode(errors="surrogateescape") if path.exists() else None


def _put_back(change: UnfinishedChange) -> None:
    if change.prefix is not None:
        # Only here: behind it are the adapters of conda and uv, which `env list` does without.
        from provision.environment import prefix as prefixes

        prefixes.put_back(Path(change.prefix), change.prefix_lock_sha256)
    folder = Path(change.folder)
    for name, content in change.files.items():
        remove_unfinished(folder / name)
        if content.before is None:
            (folder / name).unlink(missing_ok=True)
        elif _text(folder / name) != content.before:
            atomic_write(folder / name, content.before.encode(errors="surrogateescape"))
    with suppress(OSError):  # it holds something else
        folder.rmdir()
