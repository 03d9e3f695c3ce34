"""From a checkpoint's verified files into memory: straight into the state dict's tensors where
possible.
"""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable

from . import dcp
from .errors import CheckpointError, DamagedFile
from .hashes import has_digest
from .manifest import Record
from .match import narrow
from .serialize import is_plain, memory_of
from .unpickle import load_without_code, pickle_of_data

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from .backends import Backend
    from .items import Shape
    from .manifest import Manifest
    from .match import RecordRead

WORKERS = 3


class Reader:
    """Reads records of one checkpoint.

    Raises OSError if the store fails, DamagedFile if a file became shorter.
    """

    def __init__(self, backend: Backend, folder: str, content: Manifest) -> None:
        self._backend = backend
        self._content = content
        self._folder = folder
        self._sizes = {entry.name: entry.size for entry in content.files}
        # A pack's records are read one after the other.
        self._pack = lru_cache(maxsize=WORKERS)(self._read_pack)
        # By what comes before the elements of a record, their type and their sizes.
        self._kinds: dict[bytes, tuple[str, Shape]] = {}

    def check_tensors(self, reads: Sequence[RecordRead]) -> None:
        """Raises DamagedFile unless the records are of the type and sizes, and their elements where,
        the manifest says. Reads little: the packs, and the beginnings of other records.
        """
        records = {(read.name, read.record): read for read in reads}
        _run_by_file(lambda read: self._check_record(read.name, read.record), records.values())

    def read_tensors(self, reads: Sequence[RecordRead], progress: Callable[[int], None]) -> None:
        """progress: called with the bytes of each record that was read, in any thread."""

        def read_tensor(read: RecordRead) -> None:
            self._read_tensor(read)
            progress(read.record.size)

        _run_by_file(read_tensor, reads)

    def read_object(self, name: str, allow_pickle: bool) -> Any:
        """The object, with its tensors in host memory.

        Raises CheckpointError if it cannot be unpickled, or must not be.
        """
        import torch

        content = self._read_record(self._content.objects[name])
        data_pickle = pickle_of_data(content)
        try:
            if data_pickle is not None:
                return pickle.loads(data_pickle)
            if allow_pickle:
                return torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
            return load_without_code(content)
        except pickle.UnpicklingError as error:
            if allow_pickle:
                raise CheckpointError(f"{name} cannot be unpickled: {error}") from error
            raise CheckpointError(
                f"{name} is an object that must be unpickled, which can run code: "
                "pass allow_pickle=True if you trust its author"
            ) from error
        except (ImportError, AttributeError) as error:
            raise CheckpointError(
                f"{name} is an object whose class cannot be imported: {error}"
            ) from error

    def _check_record(self, name: str, record: Record) -> None:
        if record.is_bare:
            if record.size < self._sizes[record.file]:
                self._read_record(record)
            return
        kind = self._content.tensors[name].dtype, record.sizes
        begin = record.size if record.data is None else record.data - record.at
        if record.size < self._sizes[record.file]:
            head = self._read_record(record)[:begin]
        else:
            head = self._read(record, record.at, begin)
        if self._kinds.get(head) == kind:
            return
        content = self._read_record(record)
        try:
            loaded = load_without_code(content)
            is_same = (str(loaded.dtype), tuple(loaded.shape)) == kind
            elements = bytes(memory_of(loaded.contiguous()))
        except Exception as error:  # whatever torch raises for what it did not write
            raise self._damaged(record, f"{name} in it cannot be read: {error}") from error
        has_elements = record.data is None or content.startswith(elements, begin)
        if not is_same or not has_elements:
            raise self._damaged(record, f"{name} in it is not what the manifest says")
        self._kinds[head] = kind

    def _read_tensor(self, read: RecordRead) -> None:
        import torch

        with torch.no_grad():
            target, record = read.target().detach(), read.record
            if not target.numel():
                return
            dtype = dcp.dtype_of(self._content.tensors[read.name].dtype)
            is_whole = read.lengths == record.sizes
            has_same_bytes = target.dtype == dtype and is_plain(target)
            if is_whole and record.data is not None and has_same_bytes:
                self._fill(memory_of(target), record, record.data)
                return
            box = self._read_box(record, dtype)
            target.copy_(box if is_whole else narrow(box, read.begin, read.lengths))

    def _read_box(self, record: Record, dtype: torch.dtype) -> torch.Tensor:
        import torch

        if record.data is None:
            loaded: torch.Tensor = load_without_code(self._read_record(record))
            return loaded
        box = torch.empty(record.sizes, dtype=dtype, device="cpu")
        self._fill(memory_of(box), record, record.data)
        return box

    def _read_record(self, record: Record) -> bytes:
        content = self._read(record, record.at, record.size)
        # The digest of a tensor in a file of its own does not cover all of it (manifest.Record).
        is_covered = record.data is None or record.size < self._sizes[record.file]
        if is_covered and not has_digest(content, record.digest):
            raise self._damaged(record, "a record in it has another digest than in the manifest")
        return content

    def _read(self, record: Record, offset: int, length: int) -> bytes:
        content = bytearray(length)
        self._fill(memoryview(content), record, offset)
        return bytes(content)

    def _read_pack(self, whole: Record) -> bytes:
        return self._read(whole, 0, whole.size)

    def _damaged(self, record: Record, problem: str) -> DamagedFile:
        path = f"{self._backend.root}/{self._folder}/{record.file}"
        return DamagedFile(path, problem, self._content.names_in(record.file))

    def _fill(self, memory: memoryview, record: Record, offset: int) -> None:
        size = self._sizes[record.file]
        if record.size < size:
            pack = self._pack(Record(record.file, 0, size, ""))
            memory[:] = pack[offset : offset + len(memory)]
            return
        if self._backend.read_into(self._folder, record.file, offset, memory) != len(memory):
            raise self._damaged(record, "it became shorter while it was read")


def _run_by_file(action: Callable[[RecordRead], None], reads: Iterable[RecordRead]) -> None:
    """Does it for all records, a few files at a time."""
    by_file = defaultdict(list)
    for read in reads:
        by_file[read.record.file].append(read)

    def run(file: str) -> None:
        for read in by_file[file]:
            action(read)

    with ThreadPoolExecutor(WORKERS, thread_name_prefix="provision-load") as pool:
        list(pool.map(run, by_file))
