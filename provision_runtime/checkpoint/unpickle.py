"""Which objects can be loaded without running code: numbers, strings, tensors, and lists, tuples and
dicts of them.

Of files that others wrote, the rest is read as blanks, so that it can be named.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, BinaryIO, Iterator

ARCHIVE = b"PK\x03\x04"
# A member that only archives of TorchScript have.
TORCHSCRIPT = b"constants.pkl"
BLOCK = 16 << 20
# Operations of a pickle (of protocol 2, torch.save's) that make values and put them together. All
# others look up names, call what they find, or refer outside.
VALUES = "NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT BINUNICODE"
CONTAINERS = (
    "EMPTY_LIST EMPTY_DICT APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 SETITEM SETITEMS"
)
STACK = "PROTO STOP MARK POP POP_MARK BINPUT LONG_BINPUT BINGET LONG_BINGET"
SAFE_OPERATIONS = frozenset(f"{VALUES} {CONTAINERS} {STACK}".split())


def runs_code(content: bytes) -> bool:
    """Whether `load` refuses this object, as torch.save wrote it, without allow_pickle."""
    if pickle_of_data(content) is not None:
        return False
    try:
        load_without_code(content)
    except pickle.UnpicklingError:
        return True
    return False


def pickle_of_data(content: bytes) -> bytes | None:
    """The pickle in an object that holds only numbers, strings, lists and dicts; else None.

    No code runs when it is unpickled. weights_only of torch 1.13 and 2.0 refuses even a float. The
    bytes that were checked must be those that are unpickled: torch.load may find another pickle in
    the same content, before the archive or in it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            [member] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            pickled = archive.read(member)
        for operation, _, _ in pickletools.genops(pickled):
            if operation.name not in SAFE_OPERATIONS:
                return None
    except Exception:  # whatever zipfile and pickletools raise for what torch.save did not write
        return None
    return pickled


def load_without_code(content: bytes) -> Any:
    """What torch.load makes of an archive of torch.save. Raises UnpicklingError if that could run
    code.

    Before 2.6 torch ran the code of two other kinds of files in spite of weights_only: of pickles
    without an archive, or in a tar, and of TorchScript (CVE-2025-32434).
    """
    import torch

    if not content.startswith(ARCHIVE) or TORCHSCRIPT in content:
        raise pickle.UnpicklingError("it is not what torch.save writes")
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


# What makes tensors and containers; it runs no code of the file's author.
DATA_GLOBALS = frozenset(
    {
        "collections.OrderedDict",
        "collections.Counter",
        "_codecs.encode",
        "builtins.bytearray",
        "builtins.complex",
        "builtins.set",
        "torch.Size",
        "torch.Tensor",
        "torch.device",
        "torch.nn.parameter.Parameter",
        "torch.serialization._get_layout",
        "torch.storage.UntypedStorage",
        "torch._tensor._rebuild_from_type_v2",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_sparse_tensor",
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
    }
)


class Blank:
    """In the place of an object that only code of its author could make. kind: its class."""

    kind = ""

    def __new__(cls, *arguments: Any, **options: Any) -> Blank:
        return object.__new__(cls)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Takes whatever the object would, as do the methods by which pickle fills one."""

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass

    extend = append


class DataUnpickler(pickle.Unpickler):
    """Makes tensors and plain values, and a Blank of everything else."""

    more_globals: frozenset[str] = frozenset()

    def find_class(self, module: str, name: str) -> Any:
        import torch

        module = {"__builtin__": "builtins"}.get(module, module)
        path = f"{module}.{name}"
        if path in DATA_GLOBALS or path in self.more_globals:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        return type("Blank", (Blank,), {"kind": path})


def load_data(file: BinaryIO) -> Any:
    """What torch.save wrote into a file, with Blanks for what would run code.

    Raises UnpicklingError for TorchScript, and for a file without an archive if this torch could run
    its code.
    """
    import torch

    if file.read(len(ARCHIVE)) != ARCHIVE:
        file.seek(0)
        release = tuple(int(part) for part in torch.__version__.split(".")[:2])
        try:
            if release >= (2, 6):
                return torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            pass
        raise pickle.UnpicklingError("it is no archive of torch.save.")
    # All of the file: which of two archives in it torch.load reads is not known here.
    end = b""
    for block in iter(partial(file.read, BLOCK), b""):
        if TORCHSCRIPT in end + block:
            raise pickle.UnpicklingError("it is a program of TorchScript.")
        end = block[-len(TORCHSCRIPT) :]
    file.seek(0)
    module: Any = SimpleNamespace(Unpickler=DataUnpickler, __name__="data")
    return torch.load(file, map_location="cpu", pickle_module=module, weights_only=False)


def blanks(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The path and the class of each Blank in nested dicts, lists, tuples and sets."""
    kind = value if isinstance(value, type) else type(value)
    if issubclass(kind, Blank):
        yield path or "all of it", kind.kind
        return
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
        for key in value:
            yield from blanks(key, f"a key of {path}")
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    elif isinstance(value, (set, frozenset)):
        items = (("", item) for item in value)
    for key, item in items:
        yield from blanks(item, f"{path}.{key}" if path else str(key))
