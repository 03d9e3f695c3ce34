"""What a training loop does with checkpoints: objects in two lines, CheckpointManager, migration."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.scripts import run_ranks

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def rank_results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks("training_checkpoints.py", str(tmp_path_factory.mktemp("runs")), world_size=2)


def test_objects_are_saved_and_loaded_into_fresh_ones(rank_results: list[dict[str, Any]]) -> None:
    kinds = {"sgd": True, "momentum": True, "adamw": True, "adagrad": True}
    assert [outcome["two_lines"] for outcome in rank_results] == [kinds] * 2


def test_not_strict_leaves_what_the_checkpoint_lacks(rank_results: list[dict[str, Any]]) -> None:
    missing = ["epoch", "model.head.bias", "model.head.weight"]
    for outcome in rank_results:
        refusal, left, same, kept = outcome["loose"]
        assert all(name in refusal for name in missing)
        assert (left, same, kept) == (missing, True, True)


def test_metadata_and_names_are_read_without_loading(rank_results: list[dict[str, Any]]) -> None:
    for rank, outcome in enumerate(rank_results):
        first, second, described, problems, steps = outcome["descriptions"]
        assert first == {"epoch": 2, "loss": 0.5, "config": {"width": [1, 2]}, "rank": 0}
        assert second == {}
        assert described == {"a": ["torch.float32", [2, 3]], "n": ["object", []]}
        assert problems == [["CheckpointError", "ValueError"][rank]] * 3
        assert steps == [1, 2]


def test_save_warns_of_what_load_refuses(rank_results: list[dict[str, Any]]) -> None:
    """Rank 0 writes objects, so it warns."""
    plain, exotic = rank_results[0]["warned"]
    assert plain == [""]
    assert exotic[0].startswith("exotic is of type Fraction, which must be unpickled")
    assert "pass allow_pickle=True" in exotic[1]
    assert rank_results[1]["warned"][0] == [""]


def test_manager_keeps_the_last_and_the_best(rank_results: list[dict[str, Any]]) -> None:
    expected = [None, 4, 10, True, [4, 8, 10], [12, 13, 14]]
    assert [outcome["managed"] for outcome in rank_results] == [expected] * 2


def test_signal_to_one_rank_saves_on_all_at_the_same_step(
    rank_results: list[dict[str, Any]],
) -> None:
    """USR1 in step 3 leads to a save at step 4, TERM in step 7 to one at step 8, and to the end."""
    assert [outcome["signalled"] for outcome in rank_results] == [[8, True, [4, 8], True]] * 2


def test_signals_are_agreed_on_while_a_save_runs(rank_results: list[dict[str, Any]]) -> None:
    outcomes = [outcome["signalled_in_the_background"] for outcome in rank_results]
    assert outcomes == [[7, [6, 7]]] * 2


def test_checkpoints_of_torch_can_be_taken_over(rank_results: list[dict[str, Any]]) -> None:
    same, refusals, trusted, dcp_same, *leftovers = rank_results[0]["migrated"]
    assert same and trusted == "1/2"
    assert "pass allow_pickle=True if you trust its author" in refusals[0]
    assert "is not what torch.save writes" in refusals[1] or "pickle" in refusals[1]
    assert refusals[2] == "use load, with its root"
    assert "it has no .metadata" in refusals[3]
    if dcp_same is None:
        pytest.skip("this torch cannot read a folder of DCP without a state dict")
    assert dcp_same and "allow_pickle=True" in refusals[4] and leftovers == [[]]
