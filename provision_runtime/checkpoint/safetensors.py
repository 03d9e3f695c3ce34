"""Files of safetensors: a header in JSON, then the elements of the tensors.

The format is small (github.com/huggingface/safetensors, README), so files are written without its
package and without torch, straight from a checkpoint's own bytes.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import CheckpointError
from .manifest import element_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

SUFFIX = ".safetensors"
INDEX = "model.safetensors.index.json"
LENGTH = struct.Struct("<Q")
# What its package reads.
MAX_HEADER_BYTES = 100_000_000
ALIGNMENT = 8
METADATA = "__metadata__"
# Its names of the types that its package for torch reads (0.8).
DTYPES = {
    "BOOL": "torch.bool",
    "U8": "torch.uint8",
    "I8": "torch.int8",
    "U16": "torch.uint16",
    "I16": "torch.int16",
    "U32": "torch.uint32",
    "I32": "torch.int32",
    "U64": "torch.uint64",
    "I64": "torch.int64",
    "F8_E4M3": "torch.float8_e4m3fn",
    "F8_E5M2": "torch.float8_e5m2",
    "F8_E4M3FNUZ": "torch.float8_e4m3fnuz",
    "F8_E5M2FNUZ": "torch.float8_e5m2fnuz",
    "F16": "torch.float16",
    "BF16": "torch.bfloat16",
    "F32": "torch.float32",
    "F64": "torch.float64",
    "C64": "torch.complex64",
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Layout(NamedTuple):
    """A tensor in a file. dtype: in torch's spelling."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * element_bytes(self.dtype)


def header_bytes(layouts: Mapping[str, Layout]) -> bytes:
    """What comes before the elements of these tensors, which follow in this order."""
    header: dict[str, Any] = {METADATA: {"format": "pt"}}  # transformers refuses files without it
    offset = 0
    for name, layout in layouts.items():
        end = offset + layout.bytes
        header[name] = {
            "dtype": NAMES[layout.dtype],
            "shape": layout.shape,
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return LENGTH.pack(len(text)) + text


def read_file(path: str) -> dict[str, Any]:
    """The tensors of a file by name. They share memory with a private copy of the file, of which the
    system reads what is used.

    Raises CheckpointError, with the tensor's name, for what is not as the format says.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            [length] = LENGTH.unpack(file.read(LENGTH.size))
            begin = LENGTH.size + length
            if length > MAX_HEADER_BYTES or begin > size:
                raise ValueError(f"its header has {length} bytes")
            header = json.loads(file.read(length))
            header.pop(METADATA, None)
            entries = {name: _entry(name, values) for name, values in header.items()}
        except (struct.error, ValueError, AttributeError) as error:
            raise CheckpointError(f"{path} is no file of safetensors: {error}") from error
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    end = 0
    for name, (layout, first, last) in sorted(entries.items(), key=lambda item: item[1][1:]):
        if first != end or last - first != layout.bytes or begin + last > size:
            raise CheckpointError(f"{path}: the elements of {name} are not where its shape says")
        end = last
    if begin + end != size:
        raise CheckpointError(f"{path} has {size - begin - end} bytes more than its tensors")
    return {
        name: _tensor(path, name, content, begin + first, layout)
        for name, (layout, first, _) in entries.items()
    }


def _entry(name: str, values: Any) -> tuple[Layout, int, int]:
    """Raises ValueError unless these are the values of a tensor in a header."""
    try:
        kind, shape, (first, last) = values["dtype"], values["shape"], values["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"the header has no dtype, shape and data_offsets of {name}") from None
    if kind not in DTYPES:
        raise ValueError(f"{name} is of type {kind!r:.20}, which torch does not have")
    numbers = [*shape, first, last]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"the shape and the offsets of {name} are {numbers!r:.80}")
    return Layout(DTYPES[kind], tuple(shape)), first, last


def _tensor(path: str, name: str, content: mmap.mmap, offset: int, layout: Layout) -> Any:
    import torch

    dtype = getattr(torch, layout.dtype.rpartition(".")[2], None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(
            f"{path}: {name} is {layout.dtype}, which torch {torch.__version__} does not have"
        )
    count = math.prod(layout.shape)
    if not count:
        return torch.empty(layout.shape, dtype=dtype, device="cpu")
    if offset % dtype.itemsize:
        memory = bytearray(content[offset : offset + layout.bytes])
        return torch.frombuffer(memory, dtype=dtype).view(layout.shape)
    return torch.frombuffer(content, dtype=dtype, count=count, offset=offset).view(layout.shape)


def read_folder(path: str) -> dict[str, Any]:
    """The tensors of all files of a folder, as Hugging Face writes them: one, or those that the index
    lists. Raises CheckpointError if they are not those of the index.
    """
    index = os.path.join(path, INDEX)
    names = sorted(name for name in os.listdir(path) if name.endswith(SUFFIX))
    weight_map: dict[str, str] | None = None
    if os.path.exists(index):
        try:
            with open(index, encoding="utf-8") as file:
                weight_map = dict(json.load(file)["weight_map"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{index} is no index of safetensors: {error}") from error
        names = sorted(set(weight_map.values()))
        outside = [name for name in names if os.path.basename(name) != name]
        if outside:
            raise CheckpointError(f"{index} names {outside[0]!r}, which is not in its folder")
    elif len(names) > 1:
        raise CheckpointError(
            f"{path} has {len(names)} files of safetensors and no {INDEX}: name one of the files"
        )
    tensors: dict[str, Any] = {}
    for name in names:
        file_path = os.path.join(path, name)
        for tensor_name, tensor in read_file(file_path).items():
            if weight_map is not None and weight_map.get(tensor_name) != name:
                raise CheckpointError(f"{file_path} has {tensor_name}, which {INDEX} does not say")
            tensors[tensor_name] = tensor
    missing = sorted(set(weight_map or ()) - tensors.keys())
    if missing:
        raise CheckpointError(f"{path} has no {', '.join(missing)}, which {INDEX} lists")
    return tensors
