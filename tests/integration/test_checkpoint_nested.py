"""Live objects below the top of a state dict: filled where they are, or refused by their paths."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.scripts import run_ranks

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def rank_results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks("nested_states.py", str(tmp_path_factory.mktemp("nested")), world_size=2)


def test_two_nets_in_a_dict_are_filled_in_place(rank_results: list[dict[str, Any]]) -> None:
    names = ["epoch", "nets.D.bias", "nets.D.weight", "nets.G.bias", "nets.G.weight"]
    whole = [[1.0, 2.0], 3, True, [], []]
    assert [outcome["gan"] for outcome in rank_results] == [[whole, whole, names]] * 2


def test_containers_of_every_kind_keep_their_objects(rank_results: list[dict[str, Any]]) -> None:
    weights = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0]
    types = ["Pair", "OrderedDict", "Attributes", "defaultdict", "UserDict", "list"]
    expected = [weights, types, [True] * 5, [10, 10.0, "x"], [], []]
    assert [outcome["containers"] for outcome in rank_results] == [expected] * 2


def test_optimizers_in_a_list_continue_as_saved(rank_results: list[dict[str, Any]]) -> None:
    """Fresh ones, and such as have taken other steps."""
    expected = {steps: [True] * 4 for steps in ("0", "1", "5")}
    assert [outcome["optimizers"] for outcome in rank_results] == [expected] * 2
    assert [outcome["named_state"] for outcome in rank_results] == [[[3.0, 3.0], 3.0]] * 2
    frozen = [[[0, 1], [0, 1]], [[0], [0]]]
    assert [outcome["frozen_parameters"] for outcome in rank_results] == [frozen] * 2


def test_schedulers_without_their_optimizer_and_averages(
    rank_results: list[dict[str, Any]],
) -> None:
    for outcome in rank_results:
        equal, average, count, refusal = outcome["schedules"]
        assert (equal, average, count) == (True, [3.0], 3)
        assert "schedules.main.step_size" in refusal


def test_adapters_are_loaded_alone(rank_results: list[dict[str, Any]]) -> None:
    assert [outcome["adapters"] for outcome in rank_results] == [[1.0, 2.0, 2.0, 5.0, 6.0]] * 2


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ("dataclass", "a.0.b is of type Holder and holds a Linear"),
        ("tensor", "a.b is of type Holder and holds a Tensor"),
        ("deque", "a is of type deque and holds a Tensor"),
        ("method", "a.hook is of type method and holds a Linear"),
        ("half", "a is of type list and holds a HalfLive"),
        ("itself", "the state dict holds itself"),
        ("key", "a has a key of type Linear"),
        ("tensor key", "a has a key of type Parameter"),
        ("names", "the state dict cannot be saved: two values have the name a.b.bias, a.b.weight"),
        ("numbers", "the state dict cannot be saved: two values have the name a.0"),
    ],
)
def test_what_cannot_be_filled_is_refused_at_save(
    rank_results: list[dict[str, Any]], state: str, path: str
) -> None:
    for outcome in rank_results:
        assert outcome["refused_saves"][state].startswith(path)
        assert outcome["refused_saves"]["steps"] == []


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ("shorter", "no value for list.1 of"),
        ("longer", "has no list.2"),
        ("empty", "has no list"),
        ("empty dict", "no value for two.a, two.b of"),
        ("tuple", "tuple.1 is a tensor only in the state dict"),
        ("long tuple", "has no tuple.2"),
        ("shape", "tuple.0 is [2] here and [1] in the checkpoint"),
        ("part", "no value for model.bias of"),
        ("one", "two.a and two.b are one value here"),
        ("deep", "has no plain.y.w"),
        ("holder", "numbers is of type Holder and holds a Linear"),
    ],
)
def test_what_does_not_fit_is_refused_at_load(
    rank_results: list[dict[str, Any]], state: str, problem: str
) -> None:
    for outcome in rank_results:
        assert problem in outcome["refused_loads"][0][state]


def test_what_fits_is_filled_in_place_and_the_rest_is_named(
    rank_results: list[dict[str, Any]],
) -> None:
    whole = [1.0, 5, [1, 2, 3], 1, True]
    loose = [[1.0], {"x": 1, "y": {"z": 2, "w": 7}}, ["plain.y.w"], ["list.1", "model.bias"]]
    assert [outcome["refused_loads"][1:] for outcome in rank_results] == [[whole, loose]] * 2


def test_each_rank_may_have_its_own_part_of_a_model(rank_results: list[dict[str, Any]]) -> None:
    """But not less than was saved."""
    for rank, outcome in enumerate(rank_results):
        weights, refusal = outcome["parts_of_ranks"]
        assert weights == [1.0 + rank]
        assert "no value for run.model.stage0.bias of" in refusal


def test_wrapped_models_and_sharded_tensors_below_the_top(
    rank_results: list[dict[str, Any]],
) -> None:
    if rank_results[0]["wrapped"] is None:
        pytest.skip("this torch has no DTensor")
    whole = [[2.0], [0.0, 2.0, 4.0, 6.0, 8.0, 10.0], "x"]
    assert [outcome["wrapped"] for outcome in rank_results] == [
        [[2.0], [0.0, 2.0, 4.0], whole],
        [[2.0], [6.0, 8.0, 10.0], whole],
    ]


def test_manager_resumes_nested_objects(rank_results: list[dict[str, Any]]) -> None:
    assert [outcome["managed"] for outcome in rank_results] == [[2, True, True]] * 2
