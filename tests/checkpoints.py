"""Real checkpoints without torch: objects stand for whatever ranks save."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provision_runtime.checkpoint import catalog, layout
from provision_runtime.checkpoint.commit import Save, SaveReport
from provision_runtime.checkpoint.items import MIN_FILE_BYTES, OBJECT, Item
from provision_runtime.checkpoint.manifest import Manifest
from provision_runtime.checkpoint.storage import Storage
from provision_runtime.comm.ranks import Ranks, single_process


def opened(root: Path | str | Storage) -> Storage:
    return root if isinstance(root, Storage) else Storage(root)


def plan(contents: Mapping[str, object]) -> list[Item]:
    return [Item(name, OBJECT, content) for name, content in contents.items()]


def save(
    root: Path | str | Storage,
    step: int,
    contents: Mapping[str, object],
    ranks: Ranks | None = None,
    **options: Any,
) -> SaveReport:
    settings = {"progress": lambda _: None, **options}
    return Save(opened(root), step, plan(contents), ranks or single_process(), **settings).commit()


def big(letter: str) -> bytes:
    """Of a file of its own."""
    return letter.encode() * MIN_FILE_BYTES


def manifest_of(root: Path | str | Storage, step: int) -> Manifest:
    """The manifest of a step."""
    storage = opened(root)
    return catalog.read_manifest(storage, catalog.folder_of(storage, step))


def temporaries(root: Path) -> list[str]:
    """What of an unfinished save lies in a root."""
    return [
        path.name
        for path in root.iterdir()
        if layout.parse(path.name) is None and path.name != "latest"
    ]


def flip(path: Path) -> None:
    """Changes a bit in place: the file's other names see it too."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
