"""Files of safetensors: a header in JSON, then the elements of the tensors.

They are written straight from a checkpoint's own bytes, without torch and without the package, which
wants whole files in memory; the format is small (github.com/huggingface/safetensors, README). The
package reads them.
"""

from __future__ import annotations

import json
import math
import os
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import CheckpointError
from .manifest import element_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUFFIX = ".safetensors"
INDEX = "model.safetensors.index.json"
LENGTH = struct.Struct("<Q")
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


def files_of(folder: str) -> list[str]:
    """The files of a folder as Hugging Face writes it: those of its index, or its only one."""
    index = os.path.join(folder, INDEX)
    names = {name for name in os.listdir(folder) if name.endswith(SUFFIX)}
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            names = set(json.load(file)["weight_map"].values())
    elif len(names) > 1:
        raise CheckpointError(f"{folder} has several files and no {INDEX}: name one of the files")
    return [os.path.join(folder, name) for name in sorted(names)]


def read_files(paths: Sequence[str]) -> dict[str, Any]:
    """The tensors of files by name, by the package safetensors. Raises CheckpointError."""
    try:
        from safetensors import SafetensorError, torch
    except ImportError as error:
        raise CheckpointError(
            "reading safetensors needs its package: pip install safetensors"
        ) from error
    tensors: dict[str, Any] = {}
    for path in paths:
        try:
            content = torch.load_file(path)
        except SafetensorError as error:
            raise CheckpointError(f"{path} is no file of safetensors: {error}") from error
        tensors.update(content)
    return tensors
