"""Checkpoints of others, for moving away from them: files of torch.save and of Lightning, folders of
DCP, and safetensors."""

from __future__ import annotations

import os
import pickle
import re
import tempfile
from typing import Any

from . import safetensors
from .errors import CheckpointError
from .layout import parse
from .manifest import NAME as MANIFEST

METADATA = ".metadata"
UNPICKLED = re.compile(r"(?:GLOBAL|class) ([\w.]+\.\w+)")


def read_plain(path: str | os.PathLike[str], *, allow_pickle: bool = False) -> dict[str, Any]:
    """Reads a checkpoint that others wrote into host memory.

    A file of torch.save (also Lightning's `.ckpt`) or of safetensors, a folder of safetensors with an
    index, or a folder of torch.distributed.checkpoint. One process calls it, for example to save the
    result as a checkpoint of ours: `save(read_plain("old.pt"), root, step=1000)`. Nothing is
    verified: none of these has hashes.

    Args:
        path: The file or folder.
        allow_pickle: Unpickles objects, which can run code. A folder of DCP always needs it, because
            its `.metadata` is a pickle.

    Returns:
        The values by name; what is no dict has the name "value". Tensors lie in host memory.

    Raises:
        CheckpointError: If it is none of these, must not be read, or is a folder of DCP and torch is
            older than 2.3.
        OSError: If it cannot be read.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        return _read_folder(path, allow_pickle)
    if path.endswith(safetensors.SUFFIX):
        return safetensors.read(path)
    return _read_file(path, allow_pickle)


def _read_file(path: str, allow_pickle: bool) -> dict[str, Any]:
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=not allow_pickle)
    except pickle.UnpicklingError as error:
        if allow_pickle:
            raise CheckpointError(f"{path} cannot be unpickled: {error}") from error
        # torch names the class, among much advice.
        kinds = ", ".join(dict.fromkeys(UNPICKLED.findall(str(error)))) or "unknown"
        raise CheckpointError(
            f"{path} holds objects that must be unpickled, which can run code ({kinds}): "
            "pass allow_pickle=True if you trust its author"
        ) from error
    except (EOFError, RuntimeError) as error:
        raise CheckpointError(f"{path} is not what torch.save writes: {error}") from error
    return content if isinstance(content, dict) else {"value": content}


def _read_folder(path: str, allow_pickle: bool) -> dict[str, Any]:
    name = os.path.basename(os.path.normpath(path))
    if parse(name) is not None or os.path.exists(os.path.join(path, MANIFEST)):
        raise CheckpointError(f"{path} is a checkpoint of provision: use load, with its root")
    if not os.path.exists(os.path.join(path, METADATA)):
        if any(entry.endswith(safetensors.SUFFIX) for entry in os.listdir(path)):
            return safetensors.read(path)
        raise CheckpointError(
            f"{path} is no checkpoint of torch.distributed.checkpoint: it has no {METADATA}; "
            "and it has no file of safetensors"
        )
    if not allow_pickle:
        raise CheckpointError(
            f"{path}/{METADATA} is a pickle, which can run code: "
            "pass allow_pickle=True if you trust its author"
        )
    try:
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    except ImportError as error:
        raise CheckpointError(
            "reading a folder of DCP without its state dict needs torch 2.3 or later"
        ) from error
    with tempfile.TemporaryDirectory(prefix=".plain-", dir=os.path.dirname(path) or ".") as folder:
        file = os.path.join(folder, "whole.pt")
        dcp_to_torch_save(path, file)
        return _read_file(file, allow_pickle)
