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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, NamedTuple

from ..report.codec import decode
from .errors import CheckpointError
from .manifest import element_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .items import Shape

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
    shape: Shape

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
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return LENGTH.pack(len(text)) + text


def read(path: str) -> dict[str, Any]:
    """The tensors of a file, or of a folder as Hugging Face writes it, by the package safetensors.

    Raises CheckpointError if it cannot be read, or lacks a tensor that the folder's index lists.
    """
    try:
        from safetensors import SafetensorError, torch
    except ImportError as error:
        raise CheckpointError("reading safetensors needs: pip install safetensors") from error
    paths, weight_map = [Path(path)], {}
    if Path(path, INDEX).exists():
        try:
            document = json.loads(Path(path, INDEX).read_text())
            weight_map = decode(Dict[str, str], document["weight_map"], "weight_map")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{path}/{INDEX} is damaged: {error}") from error
        names = sorted(set(weight_map.values()))
        if any(name != os.path.basename(name) for name in names):
            raise CheckpointError(f"{path}/{INDEX} names files outside of its folder")
        paths = [Path(path, name) for name in names]
    elif Path(path).is_dir():
        paths = list(Path(path).glob("*" + SUFFIX))
    tensors: dict[str, Any] = {}
    for file in paths:
        try:
            tensors.update(torch.load_file(file))
        except SafetensorError as error:
            raise CheckpointError(f"{file} is no file of safetensors: {error}") from error
    missing = sorted(weight_map.keys() - tensors)
    if missing or (len(paths) > 1 and not weight_map):
        raise CheckpointError(f"{path} has no {', '.join(missing) or INDEX}")
    return tensors
