"""Checkpoints of others, for moving away from them: files of torch.save and of Lightning, folders of
DCP, and safetensors."""

from __future__ import annotations

import json
import os
import pickle
import re
import tempfile
from pathlib import Path
from typing import Any, Dict

from ..report.codec import decode
from .errors import CheckpointError
from .export import INDEX
from .manifest import NAME as MANIFEST

METADATA = ".metadata"
SUFFIX = ".safetensors"
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
    path = Path(path)
    if path.suffix == SUFFIX:
        return _read_safetensors([path])
    if not path.is_dir():
        return _read_file(path, allow_pickle)
    if (path / METADATA).exists():
        return _read_dcp(path, allow_pickle)
    if (path / MANIFEST).exists():
        raise CheckpointError(f"{path} is a checkpoint of provision: use load, with its root")
    files = [*path.glob("*" + SUFFIX)]
    if (path / INDEX).exists():
        return _read_indexed(path)
    if len(files) != 1:
        raise CheckpointError(
            f"{path} is no checkpoint of torch.distributed.checkpoint: it has no {METADATA}; "
            f"and it has no {INDEX}"
        )
    return _read_safetensors(files)


def _read_file(path: Path, allow_pickle: bool) -> dict[str, Any]:
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


def _read_dcp(path: Path, allow_pickle: bool) -> dict[str, Any]:
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
    with tempfile.TemporaryDirectory(prefix=".plain-", dir=path.parent) as folder:
        file = Path(folder, "whole.pt")
        dcp_to_torch_save(path, file)
        return _read_file(file, allow_pickle)


def _read_indexed(path: Path) -> dict[str, Any]:
    """Raises CheckpointError if the files lack a tensor that the index lists."""
    try:
        document = json.loads((path / INDEX).read_text())
        weight_map = decode(Dict[str, str], document["weight_map"], "weight_map")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}/{INDEX} is damaged: {error}") from error
    names = sorted(set(weight_map.values()))
    if any(name != os.path.basename(name) for name in names):
        raise CheckpointError(f"{path}/{INDEX} names files outside of its folder")
    tensors = _read_safetensors([path / name for name in names])
    missing = sorted(weight_map.keys() - tensors)
    if missing:
        raise CheckpointError(f"{path} has no {', '.join(missing)}")
    return tensors


def _read_safetensors(paths: list[Path]) -> dict[str, Any]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise CheckpointError("reading safetensors needs: pip install safetensors") from error
    tensors: dict[str, Any] = {}
    for path in paths:
        try:
            tensors.update(load_file(path))
        except SafetensorError as error:
            raise CheckpointError(f"{path} is no file of safetensors: {error}") from error
    return tensors
