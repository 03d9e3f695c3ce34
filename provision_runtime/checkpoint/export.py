"""A checkpoint as files of safetensors, as Hugging Face reads them.

Needs torch only to change types. One tensor at a time is in memory. Every byte that is read is
compared with the SHA-256 of its record.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..fs.files import fsync_directory, write_synced
from . import catalog
from .errors import CheckpointError, DamagedFile
from .manifest import element_bytes
from .safetensors import INDEX, NAMES, SUFFIX, Layout, header_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .backends import Backend
    from .manifest import Manifest, Record, Tensor

MAX_NAMES_IN_TEXT = 5
# What `dtype` may be: types that weights of models are published in.
DTYPES = ("float32", "float16", "bfloat16")
SHARD_BYTES = 5_000_000_000  # Hugging Face's own
FLOATS = frozenset(f"torch.{name}" for name in ("float64", *DTYPES))


@dataclass(frozen=True)
class ExportOptions:
    """What becomes of a checkpoint's values.

    part: only what is below this name, which is left out of the names. rename: patterns of `re.sub`
    and their replacements, applied to each name in turn. dtype: one of DTYPES, for all tensors of
    floats. skip: names that are left out, with all below them.
    """

    part: str = ""
    rename: tuple[tuple[str, str], ...] = ()
    dtype: str | None = None
    shard_bytes: int = SHARD_BYTES
    skip: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exported:
    """bytes: of the tensors. folder: the path of the files."""

    step: int
    folder: str
    files: tuple[str, ...]
    tensors: int
    bytes: int


def export(backend: Backend, folder: str, target: Path, options: ExportOptions) -> Exported:
    """Writes the files, and makes the target visible by one rename.

    Raises CheckpointError, with all names, for values that safetensors cannot hold, and if the
    target exists; DamagedFile; OSError.
    """
    is_empty = target.is_dir() and not any(target.iterdir())
    if os.path.lexists(target) and not is_empty:
        raise CheckpointError(f"{target} exists: name a folder that does not, or that is empty")
    content = catalog.read_manifest(backend, folder)
    sources = _chosen(content, options)
    layouts = {}
    for name, source in sources.items():
        tensor = content.tensors[source]
        layouts[name] = Layout(_exported_dtype(tensor.dtype, options.dtype), tensor.shape)
    shards = list(_shards(layouts, options.shard_bytes))
    files = ["model" + SUFFIX]
    if len(shards) > 1:
        files = [f"model-{n:05}-of-{len(shards):05}{SUFFIX}" for n in range(1, len(shards) + 1)]
    total = sum(layout.bytes for layout in layouts.values())
    reader = _RecordReader(backend, folder, content)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_remains(target)
    temporary = target.parent / f".{target.name}~{socket.gethostname()}~{os.getpid()}"
    temporary.mkdir()
    try:
        for file, names in zip(files, shards):
            with (temporary / file).open("xb") as output:
                output.write(header_bytes({name: layouts[name] for name in names}))
                for name in names:
                    tensor = content.tensors[sources[name]]
                    elements = reader.elements(sources[name], tensor)
                    if layouts[name].dtype != tensor.dtype:
                        elements = _converted(sources[name], elements, tensor, layouts[name])
                    output.write(elements)
                output.flush()
                os.fsync(output.fileno())
        if len(shards) > 1:
            weight_map = {name: file for file, names in zip(files, shards) for name in names}
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            text = json.dumps(index, indent=2, sort_keys=True) + "\n"
            write_synced(temporary / INDEX, text.encode())
            files.append(INDEX)
        fsync_directory(temporary)
        os.rename(temporary, target)
        fsync_directory(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return Exported(content.step, str(target), tuple(files), len(layouts), total)


def _chosen(content: Manifest, options: ExportOptions) -> dict[str, str]:
    """The names in the checkpoint by those in the files."""
    prefix = f"{options.part}." if options.part else ""
    sources: dict[str, str] = {}
    problems: dict[str, list[str]] = {}
    skipped: set[str] = set()
    for name in (*content.tensors, *content.objects):
        below = [entry for entry in options.skip if f"{name}.".startswith(f"{entry}.")]
        skipped.update(below)
        if below or not name.startswith(prefix):
            continue
        new_name = name[len(prefix) :]
        for pattern, replacement in options.rename:
            new_name = re.sub(pattern, replacement, new_name)
        tensor = content.tensors.get(name)
        if tensor is None:
            problems.setdefault("are no tensors", []).append(name)
        elif tensor.dtype not in NAMES:
            kind = f"are {tensor.dtype}, which safetensors does not have"
            problems.setdefault(kind, []).append(name)
        elif new_name in sources:
            kind = f"get the name {new_name} too, as {sources[new_name]} does"
            problems.setdefault(kind, []).append(name)
        elif new_name in ("", "__metadata__"):
            problems.setdefault(f"get the name {new_name!r}", []).append(name)
        else:
            sources[new_name] = name
    unknown = sorted({*options.skip} - skipped)
    if unknown:
        problems["are not in the checkpoint, so they cannot be left out"] = unknown
    parts = sorted({name.partition(".")[0] for name in content.tensors})
    if problems:
        texts = [f"{_some(names)} {kind}" for kind, names in problems.items()]
        raise CheckpointError(
            f"step {content.step} was not exported: {'; '.join(texts)}. Leave names out, or "
            f"choose one part of the checkpoint: {', '.join(parts)}"
        )
    if not sources:
        raise CheckpointError(
            f"step {content.step} has no tensors below {options.part!r}: it has {_some(parts)}"
        )
    return sources


def _some(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMES_IN_TEXT
    return ", ".join(names[:MAX_NAMES_IN_TEXT]) + (f" and {more} more" if more > 0 else "")


def _exported_dtype(dtype: str, requested: str | None) -> str:
    return f"torch.{requested}" if requested and dtype in FLOATS else dtype


def _shards(layouts: Mapping[str, Layout], limit: int) -> Iterator[list[str]]:
    """The names in each file. Within one the widest types come first, so that all are aligned."""
    shard: list[str] = []
    size = 0

    def ordered() -> list[str]:
        return sorted(shard, key=lambda name: (-element_bytes(layouts[name].dtype), name))

    for name, layout in layouts.items():
        if shard and size + layout.bytes > limit:
            yield ordered()
            shard, size = [], 0
        shard.append(name)
        size += layout.bytes
    yield ordered()


class _RecordReader:
    """The elements of tensors, from files whose bytes are checked."""

    def __init__(self, backend: Backend, folder: str, content: Manifest) -> None:
        self._backend = backend
        self._homes = {entry.name: entry.home or folder for entry in content.files}
        self._content = content

    def elements(self, name: str, tensor: Tensor) -> memoryview:
        """All elements of a tensor in order."""
        width = element_bytes(tensor.dtype)
        memory = memoryview(bytearray(math.prod(tensor.shape) * width))
        for record in tensor.records:
            length = math.prod(record.sizes) * width
            if not length:
                continue
            box = self._box(name, record, length)
            if length == len(memory):
                return box
            for begin, part in contiguous_runs(tensor.shape, record, box, width):
                memory[begin : begin + len(part)] = part
        return memory

    def _box(self, name: str, record: Record, length: int) -> memoryview:
        content = memoryview(bytearray(record.size))
        home = self._homes[record.file]
        path = f"{self._backend.root}/{home}/{record.file}"
        names = self._content.names_in(record.file)
        try:
            count = self._backend.read_into(home, record.file, record.at, content)
        except FileNotFoundError as error:
            raise DamagedFile(path, "it is missing", names) from error
        if count != record.size or hashlib.sha256(content).hexdigest() != record.sha256:
            raise DamagedFile(path, f"{name} in it has another SHA-256 than committed", names)
        if record.data is None:
            raise CheckpointError(f"{name} is stored in a form that only torch reads")
        begin = record.data - record.at
        return content[begin : begin + length]


def contiguous_runs(
    shape: Sequence[int], record: Record, box: memoryview, width: int
) -> Iterator[tuple[int, memoryview]]:
    """A box in parts that are contiguous in the tensor, with the byte at which each begins."""
    strides = [width] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    # The last dimensions that the box spans wholly, and the one before them, are one run.
    axis = len(shape) - 1
    while axis > 0 and record.sizes[axis] == shape[axis]:
        axis -= 1
    length = record.sizes[axis] * strides[axis]
    start = record.offsets[axis] * strides[axis]
    outer = [
        range(begin, begin + size)
        for begin, size in zip(record.offsets[:axis], record.sizes[:axis])
    ]
    for number, index in enumerate(itertools.product(*outer)):
        begin = start + sum(position * stride for position, stride in zip(index, strides))
        yield begin, box[number * length : (number + 1) * length]


def _converted(name: str, elements: memoryview, tensor: Tensor, layout: Layout) -> memoryview:
    """The elements in another type. Raises CheckpointError if a number does not fit into it."""
    try:
        import torch
    except ImportError as error:
        raise CheckpointError(
            "changing the type of tensors needs torch: run `python -m provision_runtime checkpoint "
            "export` with the same options in an environment that has it"
        ) from error
    from .dcp import dtype_of
    from .serialize import memory_of

    if not elements:
        return elements
    before = torch.frombuffer(elements, dtype=dtype_of(tensor.dtype))
    after = before.to(dtype_of(layout.dtype))
    overflown = int((before.isfinite() & ~after.isfinite()).sum())
    if overflown:
        raise CheckpointError(
            f"{name} has {overflown} numbers that are too large for {layout.dtype}: "
            "choose bfloat16 or float32"
        )
    return memory_of(after)


def _remove_remains(target: Path) -> None:
    """Of exports to the same folder that were killed, on this host."""
    prefix = f".{target.name}~{socket.gethostname()}~"
    for path in target.parent.iterdir():
        process = path.name[len(prefix) :]
        if not path.name.startswith(prefix) or not process.isdigit():
            continue
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            shutil.rmtree(path, ignore_errors=True)
        except PermissionError:
            continue  # another user's process, which is alive
