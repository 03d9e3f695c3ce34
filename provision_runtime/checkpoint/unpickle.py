"""Which objects can be loaded without running code: numbers, strings, tensors, and lists, tuples and
dicts of them."""

from __future__ import annotations

import io
import pickle
import zipfile
from typing import Any

from ..fs.data_pickle import holds_only_data
from .errors import CheckpointError

ARCHIVE = b"PK\x03\x04"
# A member that only archives of TorchScript have.
TORCHSCRIPT = b"constants.pkl"


def runs_code(content: bytes) -> bool:
    """Whether `load` refuses this object, as torch.save wrote it, without allow_pickle."""
    try:
        load_without_code(content)
    except pickle.UnpicklingError:
        return True
    return False


def load_object(name: str, content: bytes, allow_pickle: bool) -> Any:
    """The object, with its tensors in host memory.

    Raises CheckpointError if it cannot be unpickled, or must not be.
    """
    import torch

    try:
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


def load_without_code(content: bytes) -> Any:
    """What torch.load makes of an archive of torch.save. Raises UnpicklingError if that could run
    code.

    weights_only of torch 1.13 and 2.0 refuses even a float. Before 2.6 torch ran the code of two
    other kinds of files in spite of it: of pickles without an archive, or in a tar, and of
    TorchScript (CVE-2025-32434).
    """
    import torch

    data = _pickle_of_data(content)
    if data is not None:
        return pickle.loads(data)
    if not content.startswith(ARCHIVE) or TORCHSCRIPT in content:
        raise pickle.UnpicklingError("it is not what torch.save writes")
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _pickle_of_data(content: bytes) -> bytes | None:
    """The pickle in an object that holds only numbers, strings, lists and dicts; else None.

    No code runs when it is unpickled. The bytes that were checked must be those that are unpickled:
    torch.load may find another pickle in the same content, before the archive or in it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            [member] = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            pickled = archive.read(member)
        return pickled if holds_only_data(pickled) else None
    except Exception:  # whatever zipfile and pickletools raise for what torch.save did not write
        return None
