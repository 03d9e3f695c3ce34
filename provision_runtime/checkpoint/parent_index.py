"""What an incremental save may link."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .items import Item
    from .manifest import FileEntry, Manifest, Record


class ParentIndex:
    """What the parent checkpoint holds, by content and by place. False if there is no parent."""

    def __init__(self, folder: str | None, parent: Manifest | None) -> None:
        self.folder = folder
        self._by_sha256: dict[str, FileEntry] = {}
        self._by_name: dict[str, FileEntry] = {}
        self._records: dict[str, tuple[Record, FileEntry]] = {}
        self._boxes: dict[object, Record] = {}
        if parent is None:
            return
        for entry in parent.files:
            self._by_sha256[entry.sha256] = entry
            self._by_name[entry.name] = entry
        for name, record in parent.records():
            self._records[record.sha256] = (record, self._by_name[record.file])
            self._boxes[(name, record.offsets, record.sizes)] = record

    def __bool__(self) -> bool:
        return bool(self._by_sha256)

    def has_file(self, name: str) -> bool:
        return name in self._by_name

    def file(self, sha256: str) -> FileEntry | None:
        return self._by_sha256.get(sha256)

    def record(self, sha256: str) -> tuple[Record, FileEntry] | None:
        return self._records.get(sha256)

    def record_at(self, piece: Item) -> tuple[Record, FileEntry] | None:
        """The same box of the tensor of this name, or the same object; its type may have been
        another.
        """
        record = self._boxes.get((piece.name, piece.offsets, piece.sizes))
        if record is None:
            return None
        return record, self._by_name[record.file]
