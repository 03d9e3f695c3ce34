"""Which objects can be loaded without running code: numbers, strings, tensors, and lists, tuples and
dicts of them."""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
from typing import Any

ARCHIVE = b"PK\x03\x04"
# A member that only archives of TorchScript have.
TORCHSCRIPT = b"constants.pkl"
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
