"""From a checkpoint's verified files into memory: tensors straight into those of the state dict where their bytes may lie so."""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from . import dcp, manifest
from .match import narrow
from .serialize import memory_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from .backends import Backend
    from .manifest import Manifest, Record
    from .match import Read

WORKERS = 3
ARCHIVE = b"PK\x03\x04"
# A member that only archives of TorchScript have.
TORCHSCRIPT = b"constants.pkl"
# Operations of a pickle (of protocol 2, torch.save's) that make values and put them together. The others look up names, call what
# they find, or refer outside.
MAKING = [
    "NONE",
    "NEWTRUE",
    "NEWFALSE",
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "LONG4",
    "BINFLOAT",
    "BINUNICODE",
    "EMPTY_LIST",
    "EMPTY_DICT",
]
JOINING = [
    "EMPTY_LIST",
    "EMPTY_DICT",
    "APPEND",
    "APPENDS",
    "EMPTY_TUPLE",
    "TUPLE",
    "TUPLE1",
    "TUPLE2",
    "TUPLE3",
    "SETITEM",
    "SETITEMS",
]
KEEPING = [
    "PROTO",
    "STOP",
    "MARK",
    "POP",
    "POP_MARK",
    "BINPUT",
    "LONG_BINPUT",
    "BINGET",
    "LONG_BINGET",
]
DATA = frozenset([*MAKING, *JOINING, *KEEPING])


class Reader:
    """Reads records of one checkpoint. Raises OSError where the store fails, DamagedFile where a file became shorter."""

    def __init__(self, backend: Backend, folder: str, content: Manifest) -> None:
        self._backend = backend
        self._folder = folder
        self._content = content
        self._homes = {entry.name: entry.home or folder for entry in content.files}

    def tensors(self, reads: Sequence[Read]) -> None:
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="provision-load") as pool:
            for _ in pool.map(self._tensor, reads):
                pass

    def object(self, name: str, allow_pickle: bool) -> Any:
        """Tensors in it come to the host's memory. Raises CheckpointError where it cannot be made again, or must not be."""
        import torch

        content = self._bytes(self._content.objects[name])
        made_of_data = _pickled_data(content)
        try:
            if made_of_data is not None:
                return pickle.loads(made_of_data)
            return (
                _without_code(content)
                if not allow_pickle
                else torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
            )
        except pickle.UnpicklingError as error:
            if allow_pickle:
                raise manifest.CheckpointError(f"{name} cannot be unpickled: {error}") from error
            advice = "pass allow_pickle=True if you trust whoever wrote it"
            raise manifest.CheckpointError(
                f"{name} is an object that only unpickling makes, which can run code: {advice}"
            ) from error
        except (ImportError, AttributeError) as error:
            raise manifest.CheckpointError(
                f"{name} is an object whose class is not known here: {error}"
            ) from error

    def _tensor(self, read: Read) -> None:
        import torch

        with torch.no_grad():
            target, record = read.target().detach(), read.record
            if not target.numel():
                return
            dtype = dcp.dtype_of(self._content.tensors[read.name].dtype)
            is_whole = read.lengths == record.sizes
            if is_whole and record.data is not None and _is_plain(target, dtype):
                self._fill(memory_of(target), record, record.data)
                return
            held = self._box(record, dtype)
            target.copy_(held if is_whole else narrow(held, read.begin, read.lengths))

    def _box(self, record: Record, dtype: torch.dtype) -> torch.Tensor:
        import torch

        if record.data is None:
            loaded: torch.Tensor = _without_code(self._bytes(record))
            return loaded
        box = torch.empty(record.sizes, dtype=dtype, device="cpu")
        self._fill(memory_of(box), record, record.data)
        return box

    def _bytes(self, record: Record) -> bytes:
        content = bytearray(record.size)
        self._fill(memoryview(content), record, record.at)
        return bytes(content)

    def _fill(self, memory: memoryview, record: Record, offset: int) -> None:
        folder = self._homes[record.file]
        if self._backend.read_into(folder, record.file, offset, memory) != len(memory):
            raise manifest.DamagedFile(
                f"{self._backend.root}/{folder}/{record.file}",
                "it became shorter while it was read",
            )


def _pickled_data(content: bytes) -> bytes | None:
    """The pickle in an object that is made of numbers, texts, lists and dicts alone, which no code is run for; None where it is more.
    weights_only of torch 1.13 and 2.0 refuses even a float.

    What was looked at must be what is unpickled: torch.load may find another pickle in the same bytes, before the archive or in it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            [member] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            pickled = archive.read(member)
            return (
                pickled
                if all(operation.name in DATA for operation, _, _ in pickletools.genops(pickled))
                else None
            )
    except (
        ValueError,
        NotImplementedError,
        RuntimeError,
        EOFError,
        zlib.error,
        zipfile.BadZipFile,
    ):
        return None


def _without_code(content: bytes) -> Any:
    """What torch.load makes of an archive of its own. Raises UnpicklingError where that could run code.

    Before 2.6 torch ran the code of two other kinds of files in spite of weights_only: of pickles without an archive, or in a tar, and
    of TorchScript (CVE-2025-32434).
    """
    import torch

    if not content.startswith(ARCHIVE) or TORCHSCRIPT in content:
        raise pickle.UnpicklingError("it is not what torch.save writes")
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _is_plain(target: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether bytes may be read straight into its memory."""
    held_as_it_is = not target.is_conj() and not target.is_neg()
    return (
        target.device.type == "cpu"
        and target.dtype == dtype
        and target.is_contiguous()
        and held_as_it_is
    )
