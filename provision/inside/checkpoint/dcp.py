"""What makes a checkpoint readable by torch's own `dcp.load`: its `.metadata` file, and the same made again from the manifest.

Only torch reads the pickle; nothing here does, since the manifest holds all that is in it but the nesting of names.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .manifest import Manifest, Record, Tensor

NAME = ".metadata"


def metadata_bytes(content: Manifest, paths: dict[str, tuple[Any, ...]]) -> bytes | None:
    """None where this torch has no distributed checkpoints (1.13). paths: where each name stands in the nested state dict."""
    made = metadata(content, content.tensors, paths)
    return None if made is None else pickle.dumps(made)


def metadata(content: Manifest, tensors: Iterable[str], paths: dict[str, tuple[Any, ...]] | None = None) -> Any:
    """torch.distributed.checkpoint.metadata.Metadata of a checkpoint with these of its tensors, or None.

    This torch must know their dtypes, and need not know those of others.
    What later releases added to it (storage_meta, version) is left empty, so that 2.3 reads what 2.13 wrote.
    """
    try:
        from torch.distributed.checkpoint.filesystem import _StorageInfo
        from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex
    except ImportError:
        return None
    storage = {}
    described: dict[str, Any] = {}
    for name in tensors:
        tensor = content.tensors[name]
        described[name] = _tensor(tensor)
        for place, record in enumerate(tensor.records):
            storage[MetadataIndex(name, record.offsets, place)] = _StorageInfo(_path(content, record), record.at, record.size)
    for name, record in content.objects.items():
        described[name] = BytesStorageMetadata()
        storage[MetadataIndex(name)] = _StorageInfo(_path(content, record), record.at, record.size)
    return Metadata(state_dict_metadata=described, planner_data=paths, storage_data=storage)


def _tensor(tensor: Tensor) -> Any:
    import torch
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata

    boxes = [ChunkStorageMetadata(torch.Size(record.offsets), torch.Size(record.sizes)) for record in tensor.records]
    return TensorStorageMetadata(TensorProperties(dtype=dtype_of(tensor.dtype)), torch.Size(tensor.shape), boxes)


def _path(content: Manifest, record: Record) -> str:
    homes = {entry.name: entry.home for entry in content.files} if any(entry.home for entry in content.files) else {}
    home = homes.get(record.file)
    return record.file if home is None else f"../{home}/{record.file}"


def dtype_of(name: str) -> Any:
    """torch.float32 of "torch.float32"."""
    import torch

    return getattr(torch, name.rpartition(".")[2])
