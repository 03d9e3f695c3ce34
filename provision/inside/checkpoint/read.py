"""Reading a checkpoint: nothing is handed out before its hash was compared with the manifest.

Owns verification and finding steps; works without torch and without the ranks that wrote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import fs
from . import manifest
from .commit import folder_name

if TYPE_CHECKING:
    from pathlib import Path

STEP = re.compile(r"step-(\d{12,})")


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    manifest: manifest.Manifest

    def read(self, name: str) -> bytes:
        """The bytes that were verified, not a second reading of the file. Raises DamagedFile with the file's name."""
        entry = self.manifest.entry(name)
        content = _content(self.folder / name)
        if len(content) != entry.size:
            raise manifest.DamagedFile(self.folder / name, f"{len(content)} bytes instead of {entry.size}")
        if manifest.describe(name, content, entry.rank) != entry:
            raise manifest.DamagedFile(self.folder / name, "its SHA-256 is not the committed one")
        return content


def load(root: Path, step: int) -> Checkpoint:
    """Opens a committed step, with every file of every rank verified."""
    folder = root / folder_name(step)
    checkpoint = open_folder(folder)
    if checkpoint.manifest.step != step:
        raise manifest.DamagedFile(folder / manifest.NAME, f"it is of step {checkpoint.manifest.step}, not {step}")
    for entry in checkpoint.manifest.files:
        checkpoint.read(entry.name)
    return checkpoint


def open_folder(folder: Path) -> Checkpoint:
    """The manifest only: files are verified as they are read."""
    path = folder / manifest.NAME
    checkpoint = Checkpoint(folder, manifest.loads(_content(path), path))
    _refuse_strangers(checkpoint)
    return checkpoint


def list_steps(root: Path) -> list[int]:
    """Committed steps, oldest first; temporary folders of unfinished ones are not among them."""
    matches = (STEP.fullmatch(path.name) for path in root.iterdir())
    return sorted(int(match.group(1)) for match in matches if match)


def _content(path: Path) -> bytes:
    try:
        return fs.read_bytes(path)
    except FileNotFoundError as error:
        raise manifest.DamagedFile(path, "it is missing") from error


def _refuse_strangers(checkpoint: Checkpoint) -> None:
    """A file nobody committed means that somebody else wrote here."""
    known = {manifest.NAME} | {entry.name for entry in checkpoint.manifest.files}
    for path in sorted(checkpoint.folder.iterdir()):
        if path.name not in known:
            raise manifest.DamagedFile(path, "it is not in the manifest")
