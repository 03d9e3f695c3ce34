"""What makes a checkpoint readable by torch's own `dcp.load`: its `.metadata` file, and the same made again from the manifest.

Only torch reads the pickle; nothing here does, since the manifest holds all that is in it but the nesting of names.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .manifest import Manifest, Tensor

NAME = ".metadata"
# How a file of another folder is called from one; and the same where nobody asks.
Address = Callable[[str, str], str]
UNASKED: Address = "{}/{}".format


def metadata_bytes(
    content: Manifest, paths: dict[str, tuple[Any, ...]], address: Address
) -> bytes | None:
    """None where this torch has no distributed checkpoints (1.13). paths: where each name stands in the nested state dict."""
    made = metadata(content, content.tensors, paths, address)
    return None if made is None else pickle.dumps(made)


def metadata(
    content: Manifest,
    tensors: Iterable[str],
    paths: dict[str, tuple[Any, ...]] | None = None,
    address: Address = UNASKED,
) -> Any:
    """torch.distributed.checkpoint.metadata.Metadata of a checkpoint with these of its tensors, or None.

    This torch must know their dtypes, and need not know those of others.
    What later releases added to it (storage_meta, version) is left empty, so that 2.3 reads what 2.13 wrote.
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
    paths_of = {
        entry.name: address(entry.home, entry.name) if entry.home else entry.name
        for entry in content.files
    }
    storage = {}
    described: dict[str, Any] = {}
    for name in tensors:
        tensor = content.tensors[name]
        described[name] = _tensor(tensor)
        for place, record in enumerate(tensor.records):
            storage[MetadataIndex(name, record.offsets, place)] = _StorageInfo(
                paths_of[record.file], record.at, record.size
            )
    for name, record in content.objects.items():
        described[name] = BytesStorageMetadata()
        storage[MetadataIndex(name)] = _StorageInfo(paths_of[record.file], record.at, record.size)
    return Metadata(state_dict_metadata=described, planner_data=paths, storage_data=storage)


def _tensor(tensor: Tensor) -> Any:
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
    return TensorStorageMetadata(
        TensorProperties(dtype=dtype_of(tensor.dtype)), torch.Size(tensor.shape), boxes
    )


def dtype_of(name: str) -> Any:
    """torch.float32 of "torch.float32"."""
    import torch

    return getattr(torch, name.rpartition(".")[2])
