"""A checkpoint as files of safetensors, as Hugging Face reads them."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..dataclass import frozen
from ..fs.files import fsync_directory, write_synced
from ..report.codec import packaged_json
from . import catalog, layout
from .errors import CheckpointError
from .items import StateDict
from .loader import verify_files
from .match import match
from .memory import dtype_of, memory_of
from .nested import Expansion
from .reader import Reader
from .writer import ByteCount

if TYPE_CHECKING:
    from .manifest import Manifest
    from .storage import Storage

MAX_NAMES_IN_TEXT = 5
# What `dtype` may be: types that weights of models are published in.
DTYPES = ("float32", "float16", "bfloat16")
SHARD_BYTES = 5e9  # Hugging Face's own
INDEX = "model.safetensors.index.json"
PURPOSE = "export"


@frozen
class ExportOptions:
    """What becomes of a checkpoint's values.

    part: only what is below this name, which is left out of the names. rename: patterns of `re.sub`
    and their replacements, applied to each name in turn.
    dtype: one of DTYPES, for all tensors of floats.
    """

    part: str = ""
    rename: Sequence[tuple[str, str]] = ()
    dtype: str | None = None


@frozen
class Transfer:
    """What was written. folder: its path. values: how many. bytes: of the tensors."""

    step: int
    folder: str
    values: int
    bytes: int


def export(storage: Storage, folder: str, target: Path, options: ExportOptions) -> Transfer:
    """Writes the files, and makes the target visible by one rename.

    Raises CheckpointError, with the names, for values that the format cannot hold, and if the target
    exists; DamagedFile; OSError.
    """
    if os.path.lexists(target):
        raise CheckpointError(f"{target} exists: name a folder that does not")
    content = catalog.read_manifest(storage, folder)
    sources = _choose(content, options)
    # What killed exports left in this folder, whatever their targets were.
    for path in target.parent.glob(f"{layout.TEMPORARY}{layout.SEPARATOR}{PURPOSE}*"):
        if layout.is_leftover(path.name):
            shutil.rmtree(path, ignore_errors=True)
    temporary = target.with_name(layout.temporary(PURPOSE))
    temporary.mkdir(parents=True)
    try:
        shards = _shards(sources, content)
        size = 0
        for file, names in shards.items():
            tensors = _read_tensors(storage, folder, content, [sources[name] for name in names])
            chosen = {name: _converted(tensors[sources[name]], name, options) for name in names}
            _save_safetensors(chosen, temporary / file)
            size += sum(tensor.nbytes for tensor in chosen.values())
        if len(shards) > 1:
            weight_map = {name: file for file, names in shards.items() for name in names}
            index = {"metadata": {"total_size": size}, "weight_map": weight_map}
            write_synced(temporary / INDEX, json.dumps(index).encode())
        fsync_directory(temporary)
        os.rename(temporary, target)
        fsync_directory(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return Transfer(content.step, str(target), len(sources), size)


def _read_tensors(
    storage: Storage, folder: str, content: Manifest, names: Sequence[str]
) -> StateDict:
    """Tensors of a checkpoint in host memory, once their files were verified."""
    import torch

    state: StateDict = {}
    for name in names:
        tensor = content.tensors[name]
        state[name] = torch.empty(tensor.shape, dtype=dtype_of(tensor.dtype), device="cpu")
    plan = match(Expansion(state), content)
    verify_files(storage, folder, content, plan.files(content), ByteCount())
    Reader(storage, folder, content).read_tensors(plan.tensors, lambda _: None)
    return state


def _choose(content: Manifest, options: ExportOptions) -> dict[str, str]:
    """The names in the checkpoint by those in the files."""
    prefix = f"{options.part}." if options.part else ""
    sources: dict[str, str] = {}
    problems = []
    for name in (*content.tensors, *content.objects):
        if not name.startswith(prefix):
            continue
        new_name = renamed(name[len(prefix) :], options.rename)
        if name in content.objects:
            problems.append(f"{name} is an object, which safetensors does not have")
        elif sources.setdefault(new_name, name) != name or not new_name:
            problems.append(f"{name} gets the name {new_name!r} too")
    if problems or not sources:
        text = "; ".join(problems[:MAX_NAMES_IN_TEXT]) or f"there is nothing below {prefix!r}"
        parts = sorted({name.partition(".")[0] for name in content.tensors})
        raise CheckpointError(
            f"step {content.step} was not exported: {text} ({len(problems)} refused). "
            f"Choose a part of it with --part: {', '.join(parts)}"
        )
    return sources


def renamed(name: str, patterns: Sequence[tuple[str, str]]) -> str:
    for pattern, replacement in patterns:
        name = re.sub(pattern, replacement, name)
    return name


def _shards(sources: Mapping[str, str], content: Manifest) -> dict[str, list[str]]:
    """The names in each file."""
    size = 0
    shards: list[list[str]] = [[]]
    for name, source in sources.items():
        tensor_bytes = sum(record.size for record in content.tensors[source].records)
        if shards[-1] and size + tensor_bytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor_bytes
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    count = f"{len(shards):05}.safetensors"
    return {f"model-{number:05}-of-{count}": names for number, names in enumerate(shards, 1)}


def _converted(value: Any, name: str, options: ExportOptions) -> Any:
    """A tensor of floats in another type. Raises CheckpointError if a number does not fit into it."""
    if not options.dtype or not value.is_floating_point() or value.element_size() == 1:
        return value
    converted = value.to(dtype_of(options.dtype))
    if bool((value.isfinite() & ~converted.isfinite()).any()):
        raise CheckpointError(f"{name} has numbers that are too large for torch.{options.dtype}")
    return converted


def _save_safetensors(tensors: StateDict, path: Path) -> None:
    """A header in JSON, then the elements (github.com/huggingface/safetensors, README): little of our
    own, so that an environment needs torch alone. The package reads it in the tests."""
    # As the package safetensors (0.8) names them.
    types = packaged_json(__package__, "safetensors_types.json")
    # transformers refuses files without this.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        if str(tensor.dtype) not in types:
            raise CheckpointError(f"{name} is {tensor.dtype}, which safetensors does not have")
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": types[str(tensor.dtype)],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(memory_of(tensor))
        file.flush()
        os.fsync(file.fileno())
