"""The phase ddp's judgments that need no torch: samplers, repeated losses, gradients of other ranks, scaling."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from provision_runtime.smoke.phases.ddp import gradients, loading, repeating, sampling, scaling


def shared_out(samples: int, ranks: int, seed: int) -> list[list[int]]:
    """As DistributedSampler does: shuffled alike, filled up from the front, dealt in turn."""
    order = list(range(samples))
    random.Random(seed).shuffle(order)
    while len(order) % ranks:
        order += order[: ranks - len(order) % ranks]
    return [order[rank::ranks] for rank in range(ranks)]


@given(some.integers(1, 60), some.integers(1, 9), some.integers(0, 99))
def test_samples_that_are_shared_out_are_accepted(samples: int, ranks: int, seed: int) -> None:
    assert sampling.unlike_once(shared_out(samples, ranks, seed), samples) is None


@given(some.integers(2, 60), some.integers(1, 9), some.data())
def test_a_sample_in_the_place_of_another_is_found(
    samples: int, ranks: int, data: some.DataObject
) -> None:
    """Where the place was not one of those that only fill up the last round."""
    by_rank = shared_out(samples, ranks, 0)
    rank = data.draw(some.integers(0, ranks - 1))
    place = data.draw(some.integers(0, len(by_rank[rank]) - 1))
    removed = by_rank[rank][place]
    if sum(mine.count(removed) for mine in by_rank) > 1:
        return
    by_rank[rank][place] = data.draw(
        some.sampled_from([sample for sample in range(-1, samples + 1) if sample != removed])
    )
    found = sampling.unlike_once(by_rank, samples)
    assert found is not None
    assert found.message == f"sample {removed} of {samples} came to no rank (1 did not)"


def test_a_rank_with_fewer_samples_is_named() -> None:
    found = sampling.unlike_once([[0, 1], [2, 3], [4]], 6)
    assert found is not None
    assert (found.id, found.ranks, found.message) == (
        "sampler-wrong",
        (2,),
        "1 samples instead of 2 of 6",
    )


def test_a_sample_that_is_none_is_named_with_its_rank() -> None:
    found = sampling.unlike_once([[0, 1], [2, 9]], 3)
    assert found is not None
    assert (found.ranks, found.message) == ((1,), "sample 9 is none of 3")


def test_equal_runs_are_equal_to_the_last_bit() -> None:
    losses = [(0.1).hex(), (0.3).hex(), "digest"]
    assert repeating.unlike(losses, list(losses)) is None
    found = repeating.unlike(losses, [(0.1).hex(), (0.1 + 0.2).hex(), "digest"])
    assert found is not None
    assert (
        found.message == "the same seed gave twice the loss of step 1: 0.3 and 0.30000000000000004"
    )
    found = repeating.unlike(losses, [*losses[:2], "other"])
    assert found is not None
    assert "the model after the last step: not the same bits" in found.message


def test_ranks_whose_gradients_differ_from_most_are_named() -> None:
    assert gradients.unlike_others(["a", "a"]) is None
    found = gradients.unlike_others(["b", "a", "a"])
    assert found is not None
    assert (found.id, found.ranks) == ("gradient-mismatch", (0,))
    found = gradients.unlike_others(["a", "b"])
    assert found is not None
    assert found.ranks == (0, 1)


def test_scaling_is_the_time_alone_by_the_time_together() -> None:
    assert scaling.summarize(1.0, 1.25, 4)["efficiency"] == 0.8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "DataLoader worker (pid 4711) is killed by signal: Bus error.",
            "RuntimeError: DataLoader worker is killed by signal: Bus error.",
        ),
        (
            "DataLoader worker (pid(s) 11, 12) exited unexpectedly",
            "RuntimeError: DataLoader worker exited unexpectedly",
        ),
        (
            "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback:\n  a line\nKeyError: 3\n",
            "KeyError: 3 (in a worker)",
        ),
    ],
)
def test_ranks_that_lost_different_workers_say_the_same(text: str, expected: str) -> None:
    assert loading.in_words(RuntimeError(text)) == expected


def test_ranks_whose_loader_failed_are_one_finding() -> None:
    assert loading.failure([None, None], 1) is None
    found = loading.failure([None, "OSError: full", "RuntimeError: killed"], 2)
    assert found is not None
    assert (found.ranks, found.message) == (
        (1, 2),
        "a DataLoader with 2 loader workers: OSError: full",
    )
