"""The wheels next to spec.yml, which belong in the lab's repository like spec.yml itself: of packages
that were built here, and those that `provision add` copied.

A file there lists what provision put there: such a wheel goes when nothing names it any more. Any
other is the user's, and stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

from provision.core.atomic import atomic_write

WHEELS, RECORD = "wheels", "SHA256SUMS"
# A file that was written -> what it held before, if it existed.
Placed = dict[Path, bytes | None]


def place(name: str, content: bytes, folder: Path, placed: Placed) -> Path:
    """Put a wheel into an environment's folder, and return its path there. placed: for `undo`."""
    target = folder / WHEELS / name
    record = target.with_name(RECORD)
    if not target.exists() or target.read_bytes() != content:
        line = f"{hashlib.sha256(content).hexdigest()}  {name}"
        remaining = [text for text in _lines(record) if not text.endswith(f"  {name}")]
        for path, new in ((target, content), (record, _text([*remaining, line]))):
            placed.setdefault(path, path.read_bytes() if path.exists() else None)
            atomic_write(path, new)
    return target


@contextmanager
def undone_on_failure(*, keep: bool = True) -> Iterator[Placed]:
    """What the block places, for `place`, is undone if the block fails, or unless keep."""
    placed: Placed = {}
    stays = False
    try:
        yield placed
        stays = keep
    finally:
        if not stays:
            undo(placed)


def undo(placed: Mapping[Path, bytes | None]) -> None:
    """Take out what was put there, and put back what that replaced."""
    for path, earlier in placed.items():
        if earlier is not None:
            atomic_write(path, earlier)
        else:
            _remove(path)


def remove_unnamed(folder: Path, *texts: str) -> None:
    """Remove the wheels that provision put there and none of these texts names."""
    record = folder / WHEELS / RECORD
    lines = _lines(record)
    named = []
    for line in lines:
        sha256, _, name = line.partition("  ")
        wheel = record.with_name(Path(name).name)
        if any(wheel.name in unquote(text) for text in texts):
            named.append(line)
        elif wheel.is_file() and hashlib.sha256(wheel.read_bytes()).hexdigest() == sha256:
            _remove(wheel)
    if named != lines:
        atomic_write(record, _text(named))
    if not named:
        _remove(record)


def _lines(record: Path) -> list[str]:
    return record.read_text(encoding="utf-8").splitlines() if record.exists() else []


def _text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in sorted(lines)).encode()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    with suppress(OSError):
        path.parent.rmdir()  # if it is empty
        path.parent.parent.rmdir()
