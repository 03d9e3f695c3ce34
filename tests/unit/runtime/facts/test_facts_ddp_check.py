"""Models of several ranks compared; torch's own models are compared in tests/integration/test_runtime_library.py."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from provision_runtime.comm.ranks import Ranks, single_process
from provision_runtime.facts import ddp_check
from tests.rank_threads import RankThreads

MODEL: list[ddp_check.Entry] = [
    ["0.weight", [4, 3], "float32", True],
    ["0.bias", [4], "float32", True],
    ["1.weight", [2, 4], "float32", True],
]
names = some.sampled_from(["0.weight", "0.bias", "1.weight", "1.bias", "norm"])
entries = some.tuples(
    names,
    some.lists(some.integers(0, 3), max_size=2),
    some.sampled_from(["float32", "bfloat16"]),
    some.booleans(),
)
models = some.lists(entries.map(list), max_size=5, unique_by=lambda entry: str(entry[0]))


def changed(position: int, value: object) -> list[ddp_check.Entry]:
    """MODEL with one field of its second entry changed."""
    other = copy.deepcopy(MODEL)
    other[1][position] = value
    return other


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (changed(1, [5]), "0.bias is [5] float32, not [4] float32 as"),
        (changed(1, None), "0.bias is of unknown shape float32, not [4] float32 as"),
        (changed(2, "bfloat16"), "0.bias is [4] bfloat16, not [4] float32 as"),
        (changed(3, False), "0.bias is [4] float32 without gradient, not [4] float32 as"),
        (changed(0, "0.scale"), "0.bias is absent, not [4] float32 as"),
        ([MODEL[0], MODEL[2]], "0.bias is absent, not [4] float32 as"),
        (MODEL[:2], "1.weight is absent, not [2, 4] float32 as"),
        ([], "0.weight is absent, not [4, 3] float32 as"),
        ([*MODEL, ["1.bias", [2], "float32", True]], "1.bias is [2] float32, not absent as"),
        ([MODEL[1], MODEL[0], MODEL[2]], "0.bias has another position than"),
    ],
)
def test_first_difference_shows_both_sides(other: list[ddp_check.Entry], message: str) -> None:
    difference = ddp_check.first_difference([MODEL, other, MODEL])
    assert difference is not None and difference.ranks == (1,)
    assert difference.message.startswith(f"parameter {message} on most ranks")


OTHER = changed(1, [5])


@pytest.mark.parametrize(
    ("models", "ranks", "message"),
    [
        ([OTHER, MODEL, MODEL, MODEL], (0,), "parameter 0.bias is [5] float32"),
        (
            [OTHER, MODEL],
            (0, 1),
            "on rank 1, parameter 0.bias is [4] float32, not [5] float32 as on rank 0",
        ),
        (
            [MODEL, MODEL[:2], MODEL[:2], MODEL],
            (0, 1, 2, 3),
            "on ranks 1, 2, parameter 1.weight is absent, not [2, 4] float32 as on ranks 0, 3",
        ),
    ],
)
def test_without_a_majority_all_ranks_are_named(
    models: list[list[ddp_check.Entry]], ranks: tuple[int, ...], message: str
) -> None:
    difference = ddp_check.first_difference(models)
    assert difference is not None and difference.ranks == ranks
    assert difference.message.startswith(message)


@given(some.lists(models, min_size=1, max_size=5))
def test_difference_is_reported_only_if_there_is_one(models: list[list[ddp_check.Entry]]) -> None:
    difference = ddp_check.first_difference(models)
    assert (difference is None) == all(model == models[0] for model in models)
    majority = [model for model in models if 2 * models.count(model) > len(models)]
    if difference is not None and majority:
        unlike = tuple(rank for rank, model in enumerate(models) if model != majority[0])
        assert difference.ranks == unlike


class Parameter:
    requires_grad = True

    def __init__(self, *shape: int) -> None:
        self.shape, self.dtype = shape, "torch.float32"


class Model:
    """What is asked of a torch module when no data is read."""

    def __init__(self, **parameters: Parameter) -> None:
        self._parameters = parameters

    def named_parameters(self) -> Any:
        return iter(self._parameters.items())


def test_every_rank_raises_and_one_of_each_kind_gives_details() -> None:
    sent: list[Any] = []

    def check(ranks: Ranks) -> str:
        def exchange(name: str, payload: Any) -> list[Any]:
            if name == "parameters":
                sent.append((ranks.rank, payload is not None))
            return ranks.exchange(name, payload)

        model: Any = Model(weight=Parameter(2, 3 if ranks.rank in (2, 4) else 2))
        return ddp_check.require_same_parameters(model, exchange)

    errors = RankThreads(5).run(check)
    assert {str(error) for error in errors} == {
        "ranks 2, 4: parameter weight is [2, 3] float32, not [2, 2] float32 as on most ranks"
    }
    assert sorted(sent) == [(0, True), (1, False), (2, True), (3, False), (4, False)]


def test_equal_models_have_one_digest() -> None:
    model: Any = Model(weight=Parameter(2, 2), bias=Parameter(2))
    digests = RankThreads(3).run(
        lambda ranks: ddp_check.require_same_parameters(model, ranks.exchange)
    )
    assert set(digests) == {ddp_check.parameter_digest(model)}
    assert ddp_check.require_same_parameters(model, single_process().exchange) == digests[0]
