"""From a checkpoint's verified files into memory: straight into the state dict's tensors where
possible.
"""

from __future__ import annotations

import io
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from . import dcp
from .errors import CheckpointError, DamagedFile
from .match import narrow
from .serialize import is_plain, memory_of
from .unpickle import load_without_code, pickle_of_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from .backends import Backend
    from .manifest import Manifest, Record
    from .match import RecordRead

WORKERS = 3


class Reader:
    """Reads records of one checkpoint.

    Raises OSError if the store fails, DamagedFile if a file became shorter.
    """

    def __init__(self, backend: Backend, folder: str, content: Manifest) -> None:
        self._backend = backend
        self._content = content
        self._homes = {entry.name: entry.home or folder for entry in content.files}

    def read_tensors(self, reads: Sequence[RecordRead]) -> None:
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="provision-load") as pool:
            for _ in pool.map(self._read_tensor, reads):
                pass

    def read_object(self, name: str, allow_pickle: bool) -> Any:
        """The object, with its tensors in host memory.

        Raises CheckpointError if it cannot be unpickled, or must not be.
        """
        import torch

        content = self._read_bytes(self._content.objects[name])
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
            loaded: torch.Tensor = load_without_code(self._read_bytes(record))
            return loaded
        box = torch.empty(record.sizes, dtype=dtype, device="cpu")
        self._fill(memory_of(box), record, record.data)
        return box

    def _read_bytes(self, record: Record) -> bytes:
        content = bytearray(record.size)
        self._fill(memoryview(content), record, record.at)
        return bytes(content)

    def _fill(self, memory: memoryview, record: Record, offset: int) -> None:
        folder = self._homes[record.file]
        if self._backend.read_into(folder, record.file, offset, memory) != len(memory):
            path = f"{self._backend.root}/{folder}/{record.file}"
            raise DamagedFile(path, "it became shorter while it was read")
