"""Whether all ranks built the same model, checked before DistributedDataParallel assumes it.

DDP itself raises on some ranks only while rank 0 waits (pytorch#76449), or hangs. Here every rank
raises, with the first parameter that differs. Names, shapes, types and flags are compared; values need
not be equal, since DDP copies them from rank 0. Does not import torch: everything it needs comes with
the model.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, List

from ..comm.rank_names import name_ranks
from ..dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

__all__ = ["ParameterDifference", "ParametersDiffer", "parameter_digest", "require_same_parameters"]

# [name, shape, dtype, requires_grad]. A list, because JSON has no tuples.
Entry = List[Any]


@frozen
class ParameterDifference:
    """The first parameter that differs.

    Attributes:
        parameter: Its name.
        message: Contrasts the parameter on `ranks` with that on most ranks. Without a majority it
            names the ranks of each side.
        ranks: Those that differ from most ranks; all of them without a majority.
    """

    parameter: str
    message: str
    ranks: tuple[int, ...]


class ParametersDiffer(RuntimeError):
    """The ranks did not build the same model; raised on all of them.

    Args:
        difference: The first parameter that differs.
    """

    def __init__(self, difference: ParameterDifference) -> None:
        super().__init__(f"{name_ranks(difference.ranks)}: {difference.message}")
        self.difference = difference


def parameter_digest(model: torch.nn.Module) -> str:
    """Hashes what DistributedDataParallel assumes to be equal on all ranks: name, shape, dtype and
    requires_grad of every parameter, in the order in which it takes them.

    Args:
        model: The model, before it is wrapped.

    Returns:
        The SHA-256, in hexadecimal.
    """
    return _digest(describe(model))


def require_same_parameters(
    model: torch.nn.Module, exchange: Callable[[str, Any], list[Any]]
) -> str:
    """Compares the parameters of all ranks, before DistributedDataParallel assumes that they are
    equal. All ranks call it.

    They exchange a digest, and only if that differs the list of parameters.

    Args:
        model: The model, before it is wrapped.
        exchange: `exchange(name, payload)` returns every rank's payload in rank order, as
            `ranks.of_default_group().exchange` does.

    Returns:
        The digest that all ranks have (parameter_digest).

    Raises:
        ParametersDiffer: On every rank, with the first parameter that differs.
        RanksMissing: If a rank does not come in time.
    """
    entries = describe(model)
    local = [_digest(entries), secrets.token_hex(8)]
    tokens = exchange("parameter digests", local)
    digests = [digest for digest, _ in tokens]
    if len(set(digests)) == 1:
        return local[0]
    # The first of the ranks with the same digest sends its parameters: a large model times a
    # thousand ranks is more than a store should carry.
    is_sender = tokens.index(local) == digests.index(local[0])
    models = exchange("parameters", entries if is_sender else None)
    difference = first_difference([models[digests.index(digest)] for digest in digests])
    assert difference is not None
    raise ParametersDiffer(difference)


def describe(model: torch.nn.Module) -> list[Entry]:
    """What DDP assumes to be equal: name, shape, type and requires_grad of every parameter."""
    return [
        [name, _shape(value), str(value.dtype).replace("torch.", "", 1), value.requires_grad]
        for name, value in model.named_parameters()
    ]


def first_difference(models: Sequence[Sequence[Entry]]) -> ParameterDifference | None:
    """The difference between the majority's model and that of the first rank that differs.

    Without a majority, rank 0's model is the reference, and the difference names all ranks, since
    any may be wrong.
    """
    texts = [json.dumps(model) for model in models]
    common, count = Counter(texts).most_common(1)[0]
    has_majority = count * 2 > len(texts)
    if not has_majority:
        common = texts[0]  # DDP would copy from rank 0
    if not (differing := [rank for rank, text in enumerate(texts) if text != common]):
        return None
    name, message = _compare(
        models[texts.index(common)],
        models[differing[0]],
        "on most ranks" if has_majority else f"on {_ranks_with(common, texts)}",
    )
    if has_majority:
        return ParameterDifference(name, message, tuple(differing))
    return ParameterDifference(
        name, f"on {_ranks_with(texts[differing[0]], texts)}, {message}", tuple(range(len(models)))
    )


def _shape(value: torch.Tensor) -> list[int] | None:
    """None for a lazy parameter, whose shape is unknown before the first batch."""
    try:
        return list(value.shape)
    except RuntimeError:
        return None


def _digest(entries: Sequence[Entry]) -> str:
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def _ranks_with(text: str, texts: Sequence[str]) -> str:
    return name_ranks([rank for rank, other in enumerate(texts) if other == text])


def _compare(reference: Sequence[Entry], model: Sequence[Entry], where: str) -> tuple[str, str]:
    """The first parameter that differs, and a message. where: the ranks of the reference."""
    expected_by_name = {entry[0]: entry for entry in reference}
    entry_by_name = {entry[0]: entry for entry in model}
    first, second = next(
        (first, second) for first, second in zip_longest(reference, model) if first != second
    )
    name = first[0] if first and first[0] not in entry_by_name else second[0]
    expected, entry = expected_by_name.get(name), entry_by_name.get(name)
    problem = f"is {_describe(entry)}, not {_describe(expected)} as {where}"
    if entry == expected:
        problem = f"has another position than {where}"
    return name, f"parameter {name} {problem}"


def _describe(entry: Entry | None) -> str:
    if entry is None:
        return "absent"
    _, shape, dtype, is_trained = entry
    text = f"{'of unknown shape' if shape is None else shape} {dtype}"
    return text if is_trained else f"{text} without gradient"
