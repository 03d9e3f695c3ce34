"""Writing generated files without losing anybody's edits: each opens with what made it and a digest of what follows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from provision.core.atomic import atomic_write
from provision.core.errors import InvalidSpec, StaleLock

State = Literal["missing", "ours", "edited"]
MADE_BY = "# Made by provision from "
DIGEST = "# sha256 of what follows: "


def sealed(name: str, body: str, origin: str = "") -> str:
    """The text of an environment's file: what made it, a digest of the rest, the rest. origin: of which template of a lab it is."""
    return sealed_by(f"{MADE_BY}spec.yml{origin}; remake with: provision render {name}", body)


def sealed_by(made_by: str, body: str) -> str:
    return f"{made_by}\n{DIGEST}{_digest(body)}\n{body}"


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def state(path: Path) -> State:
    """Whether a file is absent, as we wrote it, or somebody's own (never ours, or edited since)."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n", 2)
    except FileNotFoundError:
        return "missing"
    except UnicodeDecodeError:
        return "edited"
    ours = (
        len(lines) == 3
        and lines[0].startswith("# Made by provision")
        and lines[1] == DIGEST + _digest(lines[2])
    )
    return "ours" if ours else "edited"


def read(path: Path) -> str:
    """A file's text, or InvalidSpec for one that is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidSpec(
            f"{path} is not UTF-8 text (byte {error.start}).", advice="Save it as UTF-8."
        ) from error


def pending(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """The files that would be written: those that are not already exactly this text."""
    return [name for name, text in texts.items() if not _same(folder / name, text)]


def edited(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """The files among them that somebody has edited, and that we would have to overwrite."""
    return [name for name in pending(folder, texts) if state(folder / name) == "edited"]


def write(folder: Path, texts: Mapping[str, str], *, force: bool = False) -> list[str]:
    """Write what differs and return the names. Raises StaleLock, having written nothing, if that would undo a hand edit."""
    changed = edited(folder, texts)
    if changed and not force:
        raise StaleLock(
            f"{', '.join(str(folder / name) for name in changed)} was edited by hand and differs from what spec.yml renders.",
            advice=f"`provision lock {folder.name} --relock` locks it as edited; `provision render {folder.name} --force` undoes the edit.",
        )
    written = pending(folder, texts)
    for name in written:
        atomic_write(folder / name, texts[name])
    return written


def _same(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode()
    except FileNotFoundError:
        return False
