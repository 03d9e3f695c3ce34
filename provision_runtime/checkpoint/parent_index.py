"""What an incremental save may link."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import manifest
    from .items import Item
    from .manifest import Manifest


class Known:
    """What the parent checkpoint holds, by content and by place."""

    def __init__(self, folder: str | None, parent: Manifest | None) -> None:
        self.folder = folder
        self._files = {entry.sha256: entry for entry in parent.files} if parent else {}
        names = self._names = {entry.name: entry for entry in parent.files} if parent else {}
        self._records = (
            {record.sha256: (record, names[record.file]) for _, record in parent.records()}
            if parent
            else {}
        )
        self._boxes = (
            {(name, record.offsets, record.sizes): record for name, record in parent.records()}
            if parent
            else {}
        )

    def __bool__(self) -> bool:
        return bool(self._files)

    def has(self, name: str) -> bool:
        """Whether the parent has a file of this name."""
        return name in self._names

    def file(self, sha256: str) -> manifest.FileEntry | None:
        return self._files.get(sha256)

    def record(self, sha256: str) -> tuple[manifest.Record, manifest.FileEntry] | None:
        return self._records.get(sha256)

    def before(self, piece: Item) -> tuple[manifest.Record, manifest.FileEntry] | None:
        """The same box of the tensor of this name, or the object; its type may have been another."""
        record = self._boxes.get((piece.name, piece.offsets, piece.sizes))
        return (record, self._names[record.file]) if record else None
