"""What loads and saves refuse: the same on all ranks, naming the cause, with the state dict unchanged."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.integration.scripts import run_ranks

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def rank_results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks("refusals.py", str(tmp_path_factory.mktemp("refusals")), world_size=2)


def test_all_mismatches_are_reported_and_nothing_is_modified(
    rank_results: list[dict[str, Any]],
) -> None:
    problems = [
        "the checkpoint of step 1 has no f.h",
        "b is [4] here and [2, 2] in the checkpoint",
        "c is torch.int64 here, which cannot hold the torch.float32 in the checkpoint",
        "d is a tensor only in the state dict",
        "e is a tensor only in the checkpoint",
        "i is expanded here, so several elements share one place in memory: load into a copy of it",
    ]
    assert [outcome["misfits"] for outcome in rank_results] == [
        ["CheckpointError", "; ".join(problems), [0.0] * 3, "text", ["h"]]
    ] * 2


def test_wrapper_tensors_are_refused_by_name(rank_results: list[dict[str, Any]]) -> None:
    """They have no address: the process would end by SIGSEGV."""
    if rank_results[0]["wrapper"] is None:
        pytest.skip("this torch has no TwoTensor")
    problem = "a is a TwoTensor here, which owns no memory: load the tensors it is made of"
    assert [outcome["wrapper"] for outcome in rank_results] == [
        [["CheckpointError", problem], [0.0, 0.0]]
    ] * 2
    problem = "a is a TwoTensor, which owns no memory: save the tensors it is made of"
    assert [
        outcome["unsavable"]["wrapper"][1].removeprefix("nothing was saved: rank 1: ")
        for outcome in rank_results
    ] == [problem] * 2


def test_bad_save_options_of_one_rank_raise_on_all(rank_results: list[dict[str, Any]]) -> None:
    """Or the ranks would be one save apart for good."""
    errors_of_other_ranks, own = (outcome["bad_options"][0] for outcome in rank_results)
    assert [name for name, _ in own] == ["ValueError"] * 3
    assert own[1][1] == "step='4': it must be a whole number of 0 or more"
    assert errors_of_other_ranks == [
        ["CheckpointError", f"nothing was saved: rank 1: {name}: {text}"] for name, text in own
    ]
    assert [outcome["bad_options"][1] for outcome in rank_results] == [[3, 4]] * 2


def test_bad_load_options_of_one_rank_raise_on_all(rank_results: list[dict[str, Any]]) -> None:
    errors_of_other_ranks, own = (outcome["bad_options_of_a_load"] for outcome in rank_results)
    *options, no_dict, (name, unknown) = own[0]
    assert options == [
        ["ValueError", "on_damage='zzz': pass 'refuse' or 'previous'"],
        ["ValueError", "step='newest': it must be a whole number of 0 or more"],
        ["ValueError", "step=1.5: it must be a whole number of 0 or more"],
    ]
    assert no_dict == [
        "CheckpointError",
        "the state dict is of type list: give a dict of names and values",
    ]
    assert name == "CheckpointError" and "no-such-kind" in unknown
    messages = [
        *(f"nothing was loaded: rank 1: ValueError: {text}" for _, text in options),
        f"rank 1: {no_dict[1]}",
    ]
    assert errors_of_other_ranks[0] == [
        ["CheckpointError", text] for text in (*messages, f"nothing was loaded: rank 1: {unknown}")
    ]
    assert [outcome[1:] for outcome in (errors_of_other_ranks, own)] == [
        [[0.0, 0.0], 2, [2.0, 2.0]]
    ] * 2


def test_partial_load_fills_existing_values(rank_results: list[dict[str, Any]]) -> None:
    assert [outcome["part"] for outcome in rank_results] == [
        [[1.0] * 3, ["a", "many"], 4, 1.0, [1]]
    ] * 2


def test_pickles_are_refused_unless_allowed(rank_results: list[dict[str, Any]]) -> None:
    without, value, tensor = rank_results[1]["pickled"]
    assert without[0] == "CheckpointError"
    assert without[1].startswith(
        "b is an object that must be unpickled, which can run code: pass allow_pickle=True"
    )
    assert without[2:] == [[0.0, 0.0], None, False]
    assert (value, tensor) == ("1/3", [1.0, 1.0])


def test_ranks_agree_on_refusing_or_skipping_damage(
    rank_results: list[dict[str, Any]],
) -> None:
    message, refused = rank_results[0]["damage"][0], rank_results[0]["damage"][3]
    assert message[0] == "DamagedFile"
    assert message[1].startswith("FOLDER/damaged/step-000000000002/")
    assert re.search(
        r" is damaged: its (XXH128|SHA-256) is not the committed one \(it holds of 1\)$", message[1]
    )
    assert refused == [message[1]]
    assert rank_results[0]["damage"] == [message, 0.0, 1, refused, 1.0, ["refusals.py"]]
    assert rank_results[1]["damage"] == [message, 0.0, 1, refused, 2.0, []]


def test_ranks_agree_on_damaged_latest_or_manifest(
    rank_results: list[dict[str, Any]],
) -> None:
    for rank, outcome in enumerate(rank_results):
        loaded, message, *others = outcome["damaged_pointers"]
        assert loaded == [3, 9.0], "the manifests say which is the latest"
        assert message[0] == "DamagedFile"
        assert message[1].startswith("FOLDER/pointers/step-000000000003/manifest.json is damaged")
        assert others == [0.0, True, 2, ["refusals.py"] if rank == 0 else []]


def test_after_damage_that_one_rank_knows_no_rank_links(
    rank_results: list[dict[str, Any]],
) -> None:
    expected = [[[4, 0], [0, 4]], [True, True]]
    assert [outcome["known_to_one"] for outcome in rank_results] == [
        [[], *expected],
        [["of 0"], *expected],
    ]


def test_error_lists_available_names(
    rank_results: list[dict[str, Any]],
) -> None:
    wrong = ["NoCheckpoint", "FOLDER/steps has no checkpoint of step 8: it has steps 7, 9"]
    nothing = ["NoCheckpoint", "FOLDER/nowhere has no checkpoint: it has no committed step"]
    assert [outcome["nothing_there"] for outcome in rank_results] == [[wrong, nothing, 0.0]] * 2


def test_models_and_optimizers_load_unchanged(rank_results: list[dict[str, Any]]) -> None:
    assert [outcome["stateful"] for outcome in rank_results] == [[True, True, True, 0.1]] * 2


def test_optimizer_without_state_is_refused(
    rank_results: list[dict[str, Any]],
) -> None:
    for outcome in (outcome["new_optimizers"] for outcome in rank_results):
        assert [name for name, _ in outcome] == ["CheckpointError"] * 3
        assert all(
            "before its first step its state_dict() has no state" in text for _, text in outcome
        )


def test_documented_example_restores_the_optimizer(
    rank_results: list[dict[str, Any]],
) -> None:
    assert [outcome["as_documented"] for outcome in rank_results] in (
        [[True, True, 0.1, 5]] * 2,
        [None] * 2,
    )


def test_only_the_writing_rank_pickles_a_shared_object(
    rank_results: list[dict[str, Any]],
) -> None:
    assert [outcome["replicas"] for outcome in rank_results] == [{"a": 1}] * 2


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ("pickle", "a cannot be pickled: AttributeError"),
        ("meta", "a is on the meta device: it has no values to save"),
        (
            "sparse",
            "a is not a dense tensor (torch.sparse_coo, torch.float32): save a dense copy of it",
        ),
        ("names", "the state dict cannot be saved: two values have the name a.b"),
        (
            "shape",
            "a is [3] torch.float32 on rank 1, but [2] torch.float32 on rank 0: one name must be the same tensor on all ranks",
        ),
        ("no dict", "the state dict is of type list: give a dict of names and values"),
    ],
)
def test_failure_on_one_rank_saves_nothing(
    rank_results: list[dict[str, Any]], state: str, problem: str
) -> None:
    for outcome in rank_results:
        name, text = outcome["unsavable"][state]
        assert name == "CheckpointError"
        assert text.removeprefix("nothing was saved: rank 1: ").startswith(problem)
