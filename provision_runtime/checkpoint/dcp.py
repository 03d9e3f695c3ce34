"""What torch's own `dcp.load` needs to read a checkpoint: its `.metadata` file, made from the
manifest.

Only torch reads the pickle; provision never does, since the manifest holds all of it except how
names are nested.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .items import Paths
    from .manifest import Manifest, Tensor

NAME = ".metadata"


def metadata_bytes(content: Manifest, paths: Paths) -> bytes | None:
    """None if this torch has no distributed checkpoints (1.13). paths: of each name in the nested
    state dict.
    """
    described = metadata(content, content.tensors, paths)
    return None if described is None else pickle.dumps(described)


def metadata(content: Manifest, tensors: Iterable[str], paths: Paths | None = None) -> Any:
    """torch.distributed.checkpoint.metadata.Metadata of these tensors of a checkpoint, or None.

    This torch must have the dtypes of these tensors, but not of the others. Fields that later
    releases added (storage_meta, version) stay empty, so that 2.3 reads what 2.13 wrote.
    """
    try:
        from torch.distributed.checkpoint.filesystem import _StorageInfo
        from torch.distributed.checkpoint.metadata import (
            BytesStorageMetadata,
            Metadata,
            MetadataIndex,
        )
    except ImportError:
        return None
    storage = {}
    described: dict[str, object] = {}
    for name in tensors:
        tensor = content.tensors[name]
        described[name] = _describe(tensor)
        for number, record in enumerate(tensor.records):
            storage[MetadataIndex(name, record.offsets, number)] = _StorageInfo(
                record.file, record.at, record.size
            )
    for name, record in content.objects.items():
        described[name] = BytesStorageMetadata()
        storage[MetadataIndex(name)] = _StorageInfo(record.file, record.at, record.size)
    return Metadata(state_dict_metadata=described, planner_data=paths, storage_data=storage)


def _describe(tensor: Tensor) -> Any:
    import torch
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        TensorProperties,
        TensorStorageMetadata,
    )

    boxes = [
        ChunkStorageMetadata(torch.Size(record.offsets), torch.Size(record.sizes))
        for record in tensor.records
    ]
    properties = TensorProperties(dtype=dtype_of(tensor.dtype))
    return TensorStorageMetadata(properties, torch.Size(tensor.shape), boxes)


def dtype_of(name: str) -> Any:
    """torch.float32 for "torch.float32"."""
    import torch

    return getattr(torch, name.rpartition(".")[2])
