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


def changed(**changes: Any) -> list[ddp_check.Entry]:
    """MODEL with its second entry changed, or another list altogether."""
    other = copy.deepcopy(MODEL)
    for place, name in enumerate(("name", "shape", "dtype", "requires_grad")):
        if name in changes:
            other[1][place] = changes[name]
    return other


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (changed(shape=[5]), "parameter 0.bias is [5] float32, not [4] float32 as on most ranks"),
        (
            changed(dtype="bfloat16"),
            "parameter 0.bias is [4] bfloat16, not [4] float32 as on most ranks",
        ),
        (
            changed(requires_grad=False),
            "parameter 0.bias is [4] float32 without gradient, not [4] float32 as on most ranks",
        ),
        (
            changed(shape=None),
            "parameter 0.bias is of unknown shape float32, not [4] float32 as on most ranks",
        ),
        ([MODEL[0], MODEL[2]], "parameter 0.bias is missing; it is [4] float32 on most ranks"),
        (MODEL[:2], "parameter 1.weight is missing; it is [2, 4] float32 on most ranks"),
        ([], "parameter 0.weight is missing; it is [4, 3] float32 on most ranks"),
        (
            [*MODEL, ["1.bias", [2], "float32", True]],
            "parameter 1.bias is [2] float32; it does not exist on most ranks",
        ),
        (changed(name="0.scale"), "parameter 0.bias is missing; it is [4] float32 on most ranks"),
        (
            [MODEL[1], MODEL[0], MODEL[2]],
            "parameter 0.bias takes the position of 0.weight on most ranks: the same parameters in another order",
        ),
    ],
)
def test_first_difference_shows_both_sides(other: list[ddp_check.Entry], message: str) -> None:
    difference = ddp_check.first_difference([MODEL, other, MODEL])
    assert difference is not None
    assert (difference.message, difference.ranks) == (message, (1,))


def test_lone_rank_0_is_the_deviating_rank() -> None:
    other = changed(shape=[5])
    difference = ddp_check.first_difference([other, MODEL, MODEL, MODEL])
    assert difference is not None
    assert difference.ranks == (0,)
    difference = ddp_check.first_difference([other, MODEL])
    assert difference is not None
    assert (difference.ranks, difference.message) == (
        (0, 1),
        "on rank 1, parameter 0.bias is [4] float32, not [5] float32 as on rank 0",
    )


def test_even_split_names_all_ranks_and_their_values() -> None:
    difference = ddp_check.first_difference([MODEL, MODEL[:2], MODEL[:2], MODEL])
    assert difference is not None
    assert (
        difference.message
        == "on ranks 1, 2, parameter 1.weight is missing; it is [2, 4] float32 on ranks 0, 3"
    )
    assert str(ddp_check.ParametersDiffer(difference)) == f"ranks 0-3: {difference.message}"


def test_differing_values_are_reported() -> None:
    own, other = (
        [["weight", [2], "float32", True, "abc"]],
        [["weight", [2], "float32", True, "def"]],
    )
    difference = ddp_check.first_difference([own, other])
    assert difference is not None
    assert difference.message == "on rank 1, parameter weight has other values than on rank 0"


@given(some.lists(models, min_size=1, max_size=5))
def test_difference_is_reported_only_if_there_is_one(
    given_models: list[list[ddp_check.Entry]],
) -> None:
    difference = ddp_check.first_difference(given_models)
    if difference is None:
        assert all(model == given_models[0] for model in given_models)
        return
    is_majority = len(difference.ranks) < len(given_models)
    assert is_majority == any(
        2 * given_models.count(model) > len(given_models) for model in given_models
    )
    usual = next(
        model
        for rank, model in enumerate(given_models)
        if rank not in difference.ranks or not is_majority
    )
    unlike = [rank for rank, model in enumerate(given_models) if model != usual]
    assert not is_majority or unlike == list(difference.ranks)
    first = given_models[unlike[0]]
    own = [entry for entry in usual if entry[0] == difference.parameter]
    other = [entry for entry in first if entry[0] == difference.parameter]
    assert (
        own != other
        or sorted(map(str, usual)) == sorted(map(str, first))
        or difference.message.endswith("another order")
    )


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
