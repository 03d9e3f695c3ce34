"""A checkpoint as files of safetensors, as Hugging Face reads them.

Needs torch only to change types. One tensor at a time is in memory. Every record that is read is
compared with its SHA-256.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..fs.files import fsync_directory, write_synced
from . import catalog, layout
from .errors import CheckpointError, DamagedFile
from .hashes import checker, has_digest
from .items import OBJECT
from .manifest import element_bytes
from .safetensors import INDEX, NAMES, SUFFIX, Layout, header_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from .backends import Backend
    from .manifest import FileEntry, Manifest, Record

MAX_NAMES_IN_TEXT = 5
# What `dtype` may be: types that weights of models are published in.
DTYPES = ("float32", "float16", "bfloat16")
FLOATS = frozenset(f"torch.{name}" for name in ("float64", *DTYPES))
SHARD_GB = 5.0  # Hugging Face's own
PURPOSE = "export"


@dataclass(frozen=True)
class ExportOptions:
    """What becomes of a checkpoint's values.

    part: only what is below this name, which is left out of the names. rename: patterns of `re.sub`
    and their replacements, applied to each name in turn. dtype: one of DTYPES, for all tensors of
    floats. shard_gb: the size of a file, in 1000^3 bytes.
    """

    part: str = ""
    rename: Sequence[tuple[str, str]] = ()
    dtype: str | None = None
    shard_gb: float = SHARD_GB


@dataclass(frozen=True)
class Transfer:
    """What was written. folder: its path, or URL. values: how many. bytes: of the tensors."""

    step: int
    folder: str
    values: int
    bytes: int


def export(backend: Backend, folder: str, target: Path, options: ExportOptions) -> Transfer:
    """Writes the files, and makes the target visible by one rename.

    Raises CheckpointError, with the names, for values that safetensors cannot hold, and if the
    target exists; DamagedFile; OSError.
    """
    if os.path.lexists(target):
        raise CheckpointError(f"{target} exists: name a folder that does not")
    content = catalog.read_manifest(backend, folder)
    sources = _chosen(content, options)
    layouts = {}
    for name, source in sources.items():
        tensor = content.tensors[source]
        dtype = tensor.dtype
        if options.dtype and dtype in FLOATS:
            dtype = f"torch.{options.dtype}"
        layouts[name] = Layout(dtype, tensor.shape)
    shards = list(_shards(layouts, options.shard_gb * 1e9))
    files = ["model" + SUFFIX]
    if len(shards) > 1:
        files = [f"model-{n:05}-of-{len(shards):05}{SUFFIX}" for n in range(1, len(shards) + 1)]
    total = sum(tensor.bytes for tensor in layouts.values())
    # What killed exports left in this folder, whatever their targets were.
    for path in target.parent.glob(f"{layout.TEMPORARY}{layout.SEPARATOR}{PURPOSE}*"):
        if layout.is_leftover(path.name):
            shutil.rmtree(path, ignore_errors=True)
    temporary = target.with_name(layout.temporary(PURPOSE))
    temporary.mkdir(parents=True)
    try:
        for file, names in zip(files, shards):
            with (temporary / file).open("xb") as output:
                output.write(header_bytes({name: layouts[name] for name in names}))
                for name in names:
                    output.write(_elements(backend, folder, content, sources[name], layouts[name]))
                output.flush()
                os.fsync(output.fileno())
        if len(shards) > 1:
            weight_map = {name: file for file, names in zip(files, shards) for name in names}
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            write_synced(temporary / INDEX, json.dumps(index).encode())
        fsync_directory(temporary)
        os.rename(temporary, target)
        fsync_directory(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return Transfer(content.step, str(target), len(layouts), total)


def _chosen(content: Manifest, options: ExportOptions) -> dict[str, str]:
    """The names in the checkpoint by those in the files."""
    prefix = f"{options.part}." if options.part else ""
    sources: dict[str, str] = {}
    problems = []
    for name in (*content.tensors, *content.objects):
        if not name.startswith(prefix):
            continue
        new_name = renamed(name[len(prefix) :], options.rename)
        dtype = content.tensors[name].dtype if name in content.tensors else OBJECT
        if dtype not in NAMES:
            problems.append(f"{name} is {dtype}, which safetensors does not have")
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


def _shards(layouts: Mapping[str, Layout], limit: float) -> Iterator[list[str]]:
    """The names in each file. The widest types come first in it, so that all are aligned."""
    size = 0.0
    shards: list[list[str]] = [[]]
    for name, tensor in layouts.items():
        size += tensor.bytes
        if size > limit and shards[-1]:
            shards.append([])
            size = tensor.bytes
        shards[-1].append(name)
    for shard in shards:
        yield sorted(shard, key=lambda name: (-element_bytes(layouts[name].dtype), name))


def _elements(
    backend: Backend, folder: str, content: Manifest, name: str, layout: Layout
) -> memoryview:
    """All elements of a tensor in order, in the type of the layout."""
    tensor = content.tensors[name]
    width = element_bytes(tensor.dtype)
    memory = memoryview(bytearray(math.prod(tensor.shape) * width))
    entries = {entry.name: entry for entry in content.files}
    for record in tensor.records if memory else ():
        entry = entries[record.file]
        whole = memoryview(bytearray(record.size))
        backend.read_into(folder, record.file, record.at, whole)
        if record.data is None or not _is_as_committed(whole, record, entry):
            path = f"{backend.root}/{folder}/{record.file}"
            raise DamagedFile(path, "its digest is not the committed one", (name,))
        box = whole[record.data - record.at :]
        for begin, part in contiguous_runs(tensor.shape, record, box, width):
            memory[begin : begin + len(part)] = part
    return (
        memory if layout.dtype == tensor.dtype else _converted(name, memory, tensor.dtype, layout)
    )


def _is_as_committed(content: memoryview, record: Record, entry: FileEntry) -> bool:
    """A record that is a whole file has the file's digest."""
    if record.size < entry.size:
        return has_digest(content, record.digest)
    _, computed, committed = checker(entry.digest)
    computed.update(content)
    return bool(computed.hexdigest() == committed)


def contiguous_runs(
    shape: Sequence[int], record: Record, box: memoryview, width: int
) -> Iterator[tuple[int, memoryview]]:
    """A box in parts that are contiguous in the tensor, with the byte at which each begins."""
    # The last dimensions that the box spans wholly, and the one before them, are one run.
    axis = max(len(shape) - 1, 0)
    while axis > 0 and record.sizes[axis] == shape[axis]:
        axis -= 1
    length = math.prod(record.sizes[axis:]) * width
    rows = itertools.product(*map(range, record.sizes[:axis]))
    for number, row in enumerate(rows):
        begin = 0
        for size, offset, position in itertools.zip_longest(
            shape, record.offsets, row, fillvalue=0
        ):
            begin = begin * size + offset + position
        yield begin * width, box[number * length : (number + 1) * length]


def _converted(name: str, elements: memoryview, dtype: str, layout: Layout) -> memoryview:
    """The elements in another type. Raises CheckpointError if a number does not fit into it."""
    try:
        import torch
    except ImportError as error:
        raise CheckpointError(
            "changing types needs torch: provision run NAME -- python -m provision_runtime checkpoint "
            "export, with the same options"
        ) from error
    from .dcp import dtype_of
    from .serialize import memory_of

    if not elements:
        return elements
    before = torch.frombuffer(elements, dtype=dtype_of(dtype))
    after = before.to(dtype_of(layout.dtype))
    if bool((before.isfinite() & ~after.isfinite()).any()):
        raise CheckpointError(f"{name} has numbers that are too large for {layout.dtype}")
    return memory_of(after)
