"""Generated files: each opens with what made it and a digest of the rest, so that nobody's
edits are lost when we write again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from provision.core.atomic import atomic_write
from provision.core.errors import InvalidSpec, StaleLock

FileState = Literal["missing", "ours", "edited"]
MADE_BY = "# Made by provision from "
DIGEST = "# sha256 of what follows: "


def with_header(name: str, body: str, origin: str = "") -> str:
    """The text of an environment's file: what made it, a digest of the rest, the rest.

    origin: names the lab's template, if one was used.
    """
    return with_first_line(f"{MADE_BY}spec.yml{origin}; remake with: provision render {name}", body)


def with_first_line(first_line: str, body: str) -> str:
    """A text with a first line that says what made it, and a digest of the rest."""
    return f"{first_line}\n{DIGEST}{_digest(body)}\n{body}"


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def file_state(path: Path) -> FileState:
    """Whether a file is missing, as we wrote it, or edited: also a file that was never ours
    counts as edited.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n", 2)
    except FileNotFoundError:
        return "missing"
    except UnicodeDecodeError:
        return "edited"
    if len(lines) < 3 or not lines[0].startswith("# Made by provision"):
        return "edited"
    return "ours" if lines[1] == DIGEST + _digest(lines[2]) else "edited"


def read_text(path: Path) -> str:
    """A file's text. Raises InvalidSpec if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidSpec(
            f"{path} is not UTF-8 text (byte {error.start}).", advice="Save it as UTF-8."
        ) from error


def changed_files(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """The files that `write_files` would write: those that do not hold exactly this text."""
    return [name for name, text in texts.items() if not _has_text(folder / name, text)]


def _has_text(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode()
    except FileNotFoundError:
        return False


def edited_files(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """The files that `write_files` would overwrite although somebody edited them."""
    return [name for name in changed_files(folder, texts) if file_state(folder / name) == "edited"]


def write_files(folder: Path, texts: Mapping[str, str], *, force: bool = False) -> list[str]:
    """Write the files that differ; returns their names.

    Without `force`, raises StaleLock if that would undo somebody's edits; nothing is written then.
    """
    edited = edited_files(folder, texts)
    if edited and not force:
        names = ", ".join(str(folder / name) for name in edited)
        raise StaleLock(
            f"{names} was edited by hand and differs from what spec.yml renders.",
            advice=f"`provision lock {folder.name} --relock` locks it as edited; "
            f"`provision render {folder.name} --force` undoes the edit.",
        )
    changed = changed_files(folder, texts)
    for name in changed:
        atomic_write(folder / name, texts[name])
    return changed
