"""Whether all ranks built the same model, asked before DistributedDataParallel takes it for granted.

DDP itself says it on some ranks only, while rank 0 waits (pytorch#76449), or hangs. Here every rank raises, with the first
parameter that differs. Only names, shapes, types and flags are looked at; with `data=True` the values too, piece by piece.
Works without importing torch: what it needs comes with the model.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import secrets
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import torch

# [name, shape, dtype, requires_grad] and, where the data was read, its SHA-256. Lists, because JSON has no tuples.
Entry = List[Any]
# Bytes of a tensor that are in hand at a time while its data is hashed.
PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class Difference:
    parameter: str
    # What the ranks below have and what most have; where no model has a majority, these are all ranks and it says who has what.
    message: str
    ranks: tuple[int, ...]


class ParametersDiffer(RuntimeError):
    """The ranks did not build the same model; raised on all of them."""

    def __init__(self, difference: Difference) -> None:
        super().__init__(f"{_named(difference.ranks)}: {difference.message}")
        self.difference = difference


def parameter_digest(model: torch.nn.Module, data: bool = False) -> str:
    """One SHA-256 over all parameters, in the order in which DDP takes them."""
    return _digest(describe(model, data))


def require_same_parameters(
    model: torch.nn.Module, exchange: Callable[[str, Any], list[Any]], data: bool = False
) -> str:
    """The digest that all ranks have. Raises ParametersDiffer on every rank when they do not have the same.

    `exchange(name, payload)` returns every rank's payload in rank order, as `ranks.through_store(...).exchange` does.
    """
    entries = describe(model, data)
    own, token = _digest(entries), secrets.token_hex(8)
    said = exchange("parameter digests", [own, token])
    digests = [digest for digest, _ in said]
    if len(set(digests)) == 1:
        return own
    # One rank of each kind tells all it has: a large model times a thousand ranks is more than a store should carry.
    speaks = said.index([own, token]) == digests.index(own)
    told = exchange("parameters", entries if speaks else None)
    difference = first_difference([told[digests.index(digest)] for digest in digests])
    assert difference is not None
    raise ParametersDiffer(difference)


def describe(model: torch.nn.Module, data: bool = False) -> list[Entry]:
    """What DDP takes for granted to be equal: of every parameter name, shape, type and whether it is trained."""
    named = model.named_parameters()
    if data:
        return [[*_entry(name, value), data_digest([value])] for name, value in named]
    return [_entry(name, value) for name, value in named]


def data_digest(tensors: Iterable[torch.Tensor]) -> str:
    """Of the bytes themselves, through at most PIECE_BYTES at a time, and without numpy: an environment need not have it."""
    found = hashlib.sha256()
    for tensor in tensors:
        if tensor.device.type == "meta":
            raise ValueError("a tensor on the meta device has no data to compare")
        for piece in _pieces(tensor.detach()):
            held = piece.cpu().contiguous()
            size = held.numel() * held.element_size()
            found.update((ctypes.c_char * size).from_address(held.data_ptr()) if size else b"")
    return found.hexdigest()


def first_difference(models: Sequence[Sequence[Entry]]) -> Difference | None:
    """Between what most ranks have and the first rank that has something else; without a majority, between rank 0 and that one.

    Of two ranks either may be the wrong one, so without a majority all are named.
    """
    kinds = [json.dumps(model) for model in models]
    usual, is_majority = _usual(kinds)
    others = [rank for rank, kind in enumerate(kinds) if kind != usual]
    if not others:
        return None
    whose = "on most ranks" if is_majority else f"on {_holders(kinds, usual)}"
    name, message = _compare(models[kinds.index(usual)], models[others[0]], whose)
    if is_majority:
        return Difference(name, message, tuple(others))
    return Difference(
        name, f"on {_holders(kinds, kinds[others[0]])}, {message}", tuple(range(len(models)))
    )


def _entry(name: str, value: torch.Tensor) -> Entry:
    return [name, _shape(value), str(value.dtype).replace("torch.", "", 1), value.requires_grad]


def _shape(value: torch.Tensor) -> list[int] | None:
    """None for a lazy parameter, whose shape is not known before the first batch."""
    try:
        return list(value.shape)
    except RuntimeError:
        return None


def _digest(entries: Sequence[Entry]) -> str:
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor in parts of at most PIECE_BYTES, none of them larger than that in a copy of its own."""
    if tensor.numel() * tensor.element_size() <= PIECE_BYTES:
        yield tensor
    elif tensor.is_contiguous():
        flat, step = tensor.view(-1), max(PIECE_BYTES // tensor.element_size(), 1)
        for start in range(0, flat.numel(), step):
            yield flat[start : start + step]
    else:
        for part in tensor:
            yield from _pieces(part)


def _usual(kinds: Sequence[str]) -> tuple[str, bool]:
    """What more than half of the ranks have, or else what rank 0 has: DDP would copy from rank 0."""
    kind, count = Counter(kinds).most_common(1)[0]
    return (kind, True) if count * 2 > len(kinds) else (kinds[0], False)


def _holders(kinds: Sequence[str], kind: str) -> str:
    return _named([rank for rank, other in enumerate(kinds) if other == kind])


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _compare(usual: Sequence[Entry], other: Sequence[Entry], whose: str) -> tuple[str, str]:
    """The first parameter that is not the same, and in words what is the matter with it."""
    names, other_names = [entry[0] for entry in usual], [entry[0] for entry in other]
    for mine, theirs in zip(usual, other):
        if mine == theirs:
            continue
        if mine[0] == theirs[0]:
            return mine[0], f"parameter {mine[0]} {_unlike(mine, theirs)} {whose}"
        if mine[0] in other_names and theirs[0] in names:
            return (
                theirs[0],
                f"parameter {theirs[0]} comes where {mine[0]} comes {whose}: the same parameters in another order",
            )
        return _absent(mine, whose) if mine[0] not in other_names else _surplus(theirs, whose)
    rest = usual[len(other) :]
    return _absent(rest[0], whose) if rest else _surplus(other[len(usual)], whose)


def _absent(entry: Entry, whose: str) -> tuple[str, str]:
    return entry[0], f"parameter {entry[0]} is missing; it is {_in_words(entry)} {whose}"


def _surplus(entry: Entry, whose: str) -> tuple[str, str]:
    return entry[0], f"parameter {entry[0]} is {_in_words(entry)}; there is none {whose}"


def _unlike(mine: Entry, theirs: Entry) -> str:
    """`is [3] float32, not [4] float32 as`; only the data may differ where the words are equal."""
    if mine[:4] == theirs[:4]:
        return "holds other values than"
    return f"is {_in_words(theirs)}, not {_in_words(mine)} as"


def _in_words(entry: Entry) -> str:
    _, shape, dtype, is_trained = entry[:4]
    return f"{'of unknown shape' if shape is None else shape} {dtype}{'' if is_trained else ' without gradient'}"
