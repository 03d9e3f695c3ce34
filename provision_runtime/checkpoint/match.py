"""Which records of a checkpoint a state dict needs, and where each of them goes.

Everything that does not fit is reported at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..dataclass import frozen
from . import wrappers
from .errors import CheckpointError
from .items import Item, Names, Shape
from .memory import dtype_of, has_memory, narrow
from .nested import Expansion, hidden_state
from .plan import local_boxes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from .manifest import Manifest, Record


@frozen
class RecordRead:
    """A part of a record that this rank needs: the box from `begin` on, within the record's, goes to
    the target, which has its shape.
    """

    name: str
    record: Record
    begin: Shape
    target: torch.Tensor


@frozen
class LoadPlan:
    """objects: names. missing: names that the checkpoint lacks, and whose values stay (strict=False).

    unexpected: names of the checkpoint for which the state dict has no value. unused: those of them
    without which a live object, or a list, would not be what was saved.
    """

    tensors: list[RecordRead]
    objects: list[str]
    missing: Names
    unexpected: Names
    unused: list[str]

    def files(self, content: Manifest) -> set[str]:
        """Of the records to read."""
        objects = (content.objects[name].file for name in self.objects)
        return {*objects, *(read.record.file for read in self.tensors)}

    def bytes(self, content: Manifest) -> int:
        """Of the records to read."""
        objects = sum(content.objects[name].size for name in self.objects)
        return objects + sum(read.record.size for read in self.tensors)


def match(expansion: Expansion, content: Manifest, strict: bool = True) -> LoadPlan:
    """What this rank reads.

    Raises CheckpointError with every name that does not fit, or that the checkpoint lacks; if not
    strict, the latter stay as they are.
    """
    values = expansion.values
    present = {*content.tensors, *content.objects}
    missing = [name for name in values if name not in present]
    unexpected = sorted(present - values.keys())
    problems = [
        f"{name} is the name of two values in the state dict" for name in expansion.duplicates
    ]
    if missing and strict:
        problems.append(f"the checkpoint of step {content.step} has no {', '.join(missing)}")
        problems += wrappers.describe_prefixes(missing, unexpected)
    problems += _misfits(expansion, content)
    if problems:
        raise CheckpointError("; ".join(problems))
    reads: list[RecordRead] = []
    for box in local_boxes({name: values[name] for name in values if name in content.tensors}):
        for record in content.tensors[box.name].records:
            reads += _overlap(box, record)
    return LoadPlan(
        tensors=reads,
        objects=[name for name in values if name in content.objects],
        missing=tuple(missing),
        unexpected=tuple(unexpected),
        unused=[name for name in unexpected if expansion.wholes.intersection(_containers(name))],
    )


def _containers(name: str) -> list[str]:
    """The names of all containers that it may lie in."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _overlap(box: Item, record: Record) -> Iterator[RecordRead]:
    """What of a record goes into a box of the same tensor, if anything."""
    sides = zip(box.offsets, box.sizes, record.offsets, record.sizes)
    begins, lengths = [], []
    for offset, size, begin, length in sides:
        begins.append(max(offset, begin))
        lengths.append(min(offset + size, begin + length) - begins[-1])
    if all(length > 0 for length in lengths):
        in_box = tuple(begin - offset for begin, offset in zip(begins, box.offsets))
        in_record = tuple(begin - offset for begin, offset in zip(begins, record.offsets))
        target = narrow(box.data, in_box, tuple(lengths))
        yield RecordRead(box.name, record, in_record, target)


def _misfits(expansion: Expansion, content: Manifest) -> Iterator[str]:
    first_names: dict[tuple[Any, ...], str] = {}
    for name, value in expansion.values.items():
        problem = _misfit(name, value, content)
        if problem:
            yield f"{name} {problem}"
        elif name in content.tensors or name in content.objects:
            first_name = first_names.setdefault(_position(value, expansion.slots[name]), name)
            if _content_of(first_name, content) != _content_of(name, content):
                yield f"{first_name} and {name} are one value here, and two in the checkpoint"


def _position(value: Any, slot: tuple[int, Any]) -> tuple[Any, ...]:
    """Equal for values of which the later one would overwrite the other."""
    import torch

    if not isinstance(value, torch.Tensor):
        return slot
    local = value.to_local() if hasattr(value, "to_local") else value
    if hasattr(value, "local_shards") or not local.numel() or not has_memory(local):
        return (id(value),)
    return local.data_ptr(), local.dtype, local.shape, local.stride()


def _content_of(name: str, content: Manifest) -> Any:
    """Equal for equal content."""
    if name in content.objects:
        return content.objects[name].digest
    records = content.tensors[name].records
    return [(record.offsets, record.sizes, record.digest) for record in records]


def _misfit(name: str, value: Any, content: Manifest) -> str | None:
    """Why the value cannot be filled from the checkpoint; None if it can, or if the name is
    missing.
    """
    import torch

    committed = content.tensors.get(name)
    if committed is None:
        if name not in content.objects:
            return None
        if isinstance(value, torch.Tensor):
            return "is a tensor only in the state dict"
        return hidden_state(value)
    if not isinstance(value, torch.Tensor):
        return "is a tensor only in the checkpoint"
    dtype = dtype_of(committed.dtype)
    if dtype is None:
        return (
            f"is {committed.dtype} in the checkpoint, which torch {torch.__version__} does not have"
        )
    if tuple(value.shape) != committed.shape:
        return f"is {list(value.shape)} here and {list(committed.shape)} in the checkpoint"
    if value.device.type == "meta":
        return "is on the meta device: it has no memory to read into"
    local = value.to_local() if hasattr(value, "to_local") else value
    if not has_memory(local):
        if not hasattr(value, "local_shards"):
            return (
                f"is a {type(value).__name__} here, which owns no memory: "
                "load the tensors it is made of"
            )
    elif any(step == 0 and size > 1 for step, size in zip(local.stride(), local.shape)):
        return (
            "is expanded here, so several elements share one place in memory: "
            "load into a copy of it"
        )
    if not torch.can_cast(dtype, value.dtype):
        return f"is {value.dtype} here, which cannot hold the {dtype} in the checkpoint"
    return None
