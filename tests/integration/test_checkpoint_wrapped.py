"""Wrapped and sharded models and their optimizers, passed as objects."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.scripts import run_ranks

pytestmark = pytest.mark.torch

NAMES = [
    f"model.layers.{layer}.{name}" for layer in ("first", "module") for name in ("bias", "weight")
]


@pytest.fixture(scope="module")
def rank_results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks("wrapped_models.py", str(tmp_path_factory.mktemp("wrapped")), world_size=2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", ["ddp", "compiled", "fsdp2"])
def test_wrapped_models_resume_under_the_names_of_the_plain_one(
    rank_results: list[dict[str, Any]], case: str
) -> None:
    """To the bit; and the plain model reads them. A layer that is called `module` keeps its name."""
    for outcome in rank_results:
        if outcome[case] is None:
            pytest.skip("this torch cannot do it on CPUs")
        assert outcome[case][:4] == [True, True, True, NAMES]


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", ["fsdp1 True", "fsdp1 False"])
def test_an_optimizer_with_flat_parameters_is_refused(
    rank_results: list[dict[str, Any]], case: str
) -> None:
    for outcome in rank_results:
        if outcome[case] is None:
            pytest.skip("this torch cannot do it on CPUs")
        assert "get_state_dict(model, optimizer)" in outcome[case]


def test_names_that_differ_only_by_a_prefix_are_explained(
    rank_results: list[dict[str, Any]],
) -> None:
    for outcome in rank_results:
        longer, shorter, loaded = outcome["prefixes"]
        assert "has model.module.layers.first.weight for model.layers.first.weight" in longer
        assert "Pass the module instead of its state_dict()" in shorter
        assert loaded


def test_each_rank_has_its_own_random_state_and_data(rank_results: list[dict[str, Any]]) -> None:
    for number, outcome in enumerate(rank_results):
        drawn, rank, order, refusals = outcome["by_rank"]
        assert drawn[0] == drawn[1] == drawn[2]
        assert (rank, order) == (number, list(range(number + 1)))
        assert "none of rank" in refusals[0]
        assert "the state of a Source must be unpickled" in refusals[1]
    assert rank_results[0]["by_rank"][0] != rank_results[1]["by_rank"][0]
