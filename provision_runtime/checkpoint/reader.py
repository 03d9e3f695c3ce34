"""From a checkpoint's verified files into memory: straight into the state dict's tensors where
possible.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable

from .errors import DamagedFile
from .memory import dtype_of, is_plain, memory_of, narrow
from .unpickle import load_object

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .manifest import Manifest, Record
    from .match import RecordRead
    from .storage import Storage

WORKERS = 3


class Reader:
    """Reads records of one checkpoint.

    Raises OSError if the store fails, DamagedFile if a record is not what the manifest says.
    """

    def __init__(self, storage: Storage, folder: str, content: Manifest) -> None:
        self._storage = storage
        self._content = content
        self._folder = folder
        # A pack's records are read one after the other.
        self._pack = lru_cache(maxsize=WORKERS)(self._read_pack)

    def check_packs(self, reads: Iterable[RecordRead]) -> None:
        """Compares the records in packs with their digests; those of others are in the manifest."""
        packed = (read for read in reads if read.record.is_packed)
        _run_by_file(lambda read: self._packed(read.name, read.record), packed)

    def read_tensors(self, reads: Iterable[RecordRead], progress: Callable[[int], None]) -> None:
        """progress: called with the bytes of each record that was read, in any thread."""

        def read_tensor(read: RecordRead) -> None:
            self._read_tensor(read)
            progress(read.record.size)

        _run_by_file(read_tensor, reads)

    def read_object(self, name: str, allow_pickle: bool) -> Any:
        """Raises CheckpointError if it cannot be unpickled, or must not be."""
        record = self._content.objects[name]
        content = bytearray(record.size)
        self._fill(memoryview(content), name, record)
        return load_object(name, bytes(content), allow_pickle)

    def _read_tensor(self, read: RecordRead) -> None:
        import torch

        target, record = read.target, read.record
        dtype = dtype_of(self._content.tensors[read.name].dtype)
        is_whole = tuple(target.shape) == record.sizes
        with torch.no_grad():
            if is_whole and target.dtype == dtype and is_plain(target):
                self._fill(memory_of(target), read.name, record)
                return
            box = torch.empty(record.sizes, dtype=dtype, device="cpu")
            self._fill(memory_of(box), read.name, record)
            target.copy_(narrow(box, read.begin, tuple(target.shape)))

    def _fill(self, memory: memoryview, name: str, record: Record) -> None:
        if record.is_packed:
            memory[:] = self._packed(name, record)
        elif self._storage.read_into(self._folder, record.file, 0, memory) != record.size:
            raise self._damaged(record, "it became shorter while it was read")

    def _packed(self, name: str, record: Record) -> bytes:
        content = self._pack(record.file)[record.at : record.at + record.size]
        if self._content.digest_of(name, record, content) != record.digest:
            raise self._damaged(record, f"{name} in it is not what the manifest says")
        return content

    def _read_pack(self, file: str) -> bytes:
        return self._storage.read(self._folder, file)

    def _damaged(self, record: Record, problem: str) -> DamagedFile:
        path = f"{self._storage.root}/{self._folder}/{record.file}"
        return DamagedFile(path, problem, self._content.names_in(record.file))


def _run_by_file(action: Callable[[RecordRead], object], reads: Iterable[RecordRead]) -> None:
    """Does it for all records, a few files at a time."""
    by_file = defaultdict(list)
    for read in reads:
        by_file[read.record.file].append(read)

    def run(file: str) -> None:
        for read in by_file[file]:
            action(read)

    with ThreadPoolExecutor(WORKERS, thread_name_prefix="provision-load") as pool:
        list(pool.map(run, by_file))
