"""Checkpoints of others, for moving away from them: files of torch.save and of Lightning, folders of
DCP, and safetensors."""

from __future__ import annotations

import io
import os
import pickle
from typing import Any

from . import safetensors
from .errors import CheckpointError
from .layout import parse
from .manifest import NAME as MANIFEST
from .unpickle import DataUnpickler, blanks, load_data

METADATA = ".metadata"
MAX_NAMES_IN_TEXT = 10
DCP = "torch.distributed.checkpoint"


def read_plain(
    path: str | os.PathLike[str], *, allow_pickle: bool = False, skip: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Reads a checkpoint that others wrote into host memory.

    A file of torch.save (also Lightning's `.ckpt`) or of safetensors, a folder of safetensors with an
    index, or a folder of torch.distributed.checkpoint. One process calls it, for example to save the
    result as a checkpoint of ours: `save(read_plain("old.pt"), root, step=1000)`. Nothing is
    verified: none of these has hashes.

    Args:
        path: The file or folder.
        allow_pickle: Unpickles objects, which can run code. Tensors, numbers, text, and lists, tuples
            and dicts of them do not need it.
        skip: Names to leave out, with all below them: `("hyper_parameters",)`.

    Returns:
        The values by name; what is no dict has the name "value". Tensors lie in host memory.

    Raises:
        CheckpointError: If it is none of these, or holds objects that must not be unpickled. The text
            names them.
        OSError: If it cannot be read.
    """
    path = os.fspath(path)
    content: Any
    if os.path.isdir(path):
        content = _read_folder(path, allow_pickle)
    elif path.endswith(safetensors.SUFFIX):
        content = safetensors.read_file(path)
    else:
        with open(path, "rb") as file:
            content = _load(file, path, allow_pickle)
    tree: dict[str, Any] = content if isinstance(content, dict) else {"value": content}
    for name in skip:
        _remove(tree, name, path)
    refused = list(blanks(tree))
    if refused:
        described = [f"{name} ({kind})" for name, kind in refused[:MAX_NAMES_IN_TEXT]]
        more = len(refused) - len(described)
        raise CheckpointError(
            f"{path} holds objects that must be unpickled, which can run code: "
            f"{', '.join(described)}{f' and {more} more' if more else ''}: leave them out (skip), or "
            "pass allow_pickle=True if you trust its author"
        )
    return tree


def _remove(content: Any, name: str, path: str) -> None:
    """Removes a value by its path in nested dicts."""
    first, _, rest = name.partition(".")
    for key in content if isinstance(content, dict) else ():
        if str(key) == name:
            del content[key]
            return
        if str(key) == first and rest:
            _remove(content[key], rest, path)
            return
    raise CheckpointError(f"{path} has no {name} to leave out")


def _load(file: Any, path: str, allow_pickle: bool) -> Any:
    import torch

    try:
        if allow_pickle:
            return torch.load(file, map_location="cpu", weights_only=False)
        return load_data(file)
    except pickle.UnpicklingError as error:
        problem = str(error).partition("\n")[0]
        if allow_pickle:
            raise CheckpointError(f"{path} cannot be unpickled: {problem}") from error
        raise CheckpointError(
            f"{path} cannot be read without running code: {problem} "
            "Pass allow_pickle=True if torch.save wrote it and you trust its author"
        ) from error
    except (ImportError, AttributeError) as error:
        raise CheckpointError(f"{path} has a class that cannot be imported: {error}") from error
    except (EOFError, RuntimeError, ValueError, TypeError, KeyError, IndexError) as error:
        raise CheckpointError(f"{path} is not what torch.save writes: {error}") from error


def _read_folder(path: str, allow_pickle: bool) -> dict[str, Any]:
    name = os.path.basename(os.path.normpath(path))
    if parse(name) is not None or os.path.exists(os.path.join(path, MANIFEST)):
        raise CheckpointError(f"{path} is a checkpoint of provision: use load, with its root")
    if os.path.exists(os.path.join(path, METADATA)):
        return _read_dcp(path, allow_pickle)
    if any(entry.endswith(safetensors.SUFFIX) for entry in os.listdir(path)):
        return safetensors.read_folder(path)
    raise CheckpointError(
        f"{path} is no checkpoint of torch.distributed.checkpoint: it has no {METADATA}; "
        "and it has no file of safetensors"
    )


# What the `.metadata` of DCP consists of. None of these runs code of its author.
class _MetadataUnpickler(DataUnpickler):
    more_globals = frozenset(
        {
            *(
                f"{DCP}.metadata.{name}"
                for name in (
                    "BytesStorageMetadata",
                    "ChunkStorageMetadata",
                    "Metadata",
                    "MetadataIndex",
                    "StorageMeta",
                    "TensorProperties",
                    "TensorStorageMetadata",
                    "_MEM_FORMAT_ENCODING",
                )
            ),
            f"{DCP}.filesystem._StorageInfo",
        }
    )


def _read_dcp(path: str, allow_pickle: bool) -> dict[str, Any]:
    """Needs no process group and no planner of torch's: the metadata say where all is."""
    import torch

    metadata_path = os.path.join(path, METADATA)
    with open(metadata_path, "rb") as file:
        try:
            kind = pickle.Unpickler if allow_pickle else _MetadataUnpickler
            metadata = kind(file).load()
            described, storage = metadata.state_dict_metadata, metadata.storage_data
            paths = metadata.planner_data or {}
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError) as error:
            raise CheckpointError(f"{metadata_path} is not what torch writes: {error}") from error
    values: dict[str, Any] = {}
    for name, entry in described.items():
        if hasattr(entry, "properties"):
            values[name] = torch.empty(entry.size, dtype=entry.properties.dtype, device="cpu")
    filled: dict[str, int] = {}
    for index, place in storage.items():
        if getattr(place, "transform_descriptors", None):
            raise CheckpointError(
                f"{path}: {index.fqn} is stored with {place.transform_descriptors}, which only "
                "torch's own dcp.load undoes: save it again with torch.save"
            )
        file_path = os.path.join(path, place.relative_path)
        with open(file_path, "rb") as file:
            file.seek(place.offset)
            content = io.BytesIO(file.read(place.length))
        value = _load(content, f"{file_path}: {index.fqn}", allow_pickle)
        if index.fqn not in values or index.offset is None:
            values[index.fqn] = value
            continue
        tensor = values[index.fqn]
        for dimension, (start, length) in enumerate(zip(index.offset, value.shape)):
            tensor = tensor.narrow(dimension, start, length)
        tensor.copy_(value)
        filled[index.fqn] = filled.get(index.fqn, 0) + value.numel()
    incomplete = [
        name
        for name, entry in described.items()
        if name not in values
        or (hasattr(entry, "properties") and filled.get(name, 0) != values[name].numel())
    ]
    if incomplete:
        raise CheckpointError(f"{path} does not have all of {', '.join(sorted(incomplete))}")
    nested: dict[str, Any] = {}
    for name, value in values.items():
        _set(nested, paths.get(name, (name,)), value)
    return nested


def _set(container: Any, path: tuple[Any, ...], value: Any) -> None:
    """Sets a value in nested dicts and lists, which it makes: a number is a list's."""
    for key, following in zip(path, (*path[1:], None)):
        inner: Any = value
        if following is not None:
            inner = [] if isinstance(following, int) else {}
        if isinstance(container, list):
            container.extend([None] * (key + 1 - len(container)))
            if container[key] is None or following is None:
                container[key] = inner
        elif following is None:
            container[key] = inner
        else:
            container.setdefault(key, inner)
        container = container[key]
