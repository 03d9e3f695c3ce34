"""The phase ddp's judgments that need no torch: samplers, repeated losses, gradients of other ranks, scaling."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from provision_runtime.smoke.phases import dataloader, ddp


def shared_out(samples: int, ranks: int, seed: int) -> list[list[int]]:
    """As DistributedSampler does: shuffled alike, filled up from the front, dealt in turn."""
    order = list(range(samples))
    random.Random(seed).shuffle(order)
    while len(order) % ranks:
        order += order[: ranks - len(order) % ranks]
    return [order[rank::ranks] for rank in range(ranks)]


@given(some.integers(1, 60), some.integers(1, 9), some.integers(0, 99))
def test_correctly_sharded_samples_are_accepted(samples: int, ranks: int, seed: int) -> None:
    assert dataloader.sampler_finding(shared_out(samples, ranks, seed), samples) is None


@given(some.integers(2, 60), some.integers(1, 9), some.data())
def test_replaced_sample_is_found(samples: int, ranks: int, data: some.DataObject) -> None:
    """Where the place was not one of those that only fill up the last round."""
    by_rank = shared_out(samples, ranks, 0)
    rank = data.draw(some.integers(0, ranks - 1))
    place = data.draw(some.integers(0, len(by_rank[rank]) - 1))
    removed = by_rank[rank][place]
    if sum(indices.count(removed) for indices in by_rank) > 1:
        return
    by_rank[rank][place] = data.draw(
        some.sampled_from([sample for sample in range(-1, samples + 1) if sample != removed])
    )
    finding = dataloader.sampler_finding(by_rank, samples)
    assert finding is not None
    assert finding.message == f"no rank got sample {removed} of {samples} (1 are missing)"


def test_rank_with_fewer_samples_is_named() -> None:
    finding = dataloader.sampler_finding([[0, 1], [2, 3], [4]], 6)
    assert finding is not None
    assert (finding.id, finding.ranks, finding.message) == (
        "sampler-wrong",
        (2,),
        "1 samples of 6, but every rank must get 2",
    )


def test_invalid_sample_is_named_with_its_rank() -> None:
    finding = dataloader.sampler_finding([[0, 1], [2, 9]], 3)
    assert finding is not None
    assert (finding.ranks, finding.message) == ((1,), "sample 9 does not exist: there are 3")


def test_equal_runs_are_bit_identical() -> None:
    losses = [(0.1).hex(), (0.3).hex(), "digest"]
    assert ddp.repeat_finding(losses, list(losses)) is None
    finding = ddp.repeat_finding(losses, [(0.1).hex(), (0.1 + 0.2).hex(), "digest"])
    assert finding is not None
    assert finding.message == "the same seed gave two losses in step 1: 0.3 and 0.30000000000000004"
    finding = ddp.repeat_finding(losses, [*losses[:2], "other"])
    assert finding is not None
    assert "two different models after the last step" in finding.message


def test_ranks_with_deviating_gradients_are_named() -> None:
    assert ddp.digest_finding(["a", "a"]) is None
    finding = ddp.digest_finding(["b", "a", "a"])
    assert finding is not None
    assert (finding.id, finding.ranks) == ("gradient-mismatch", (0,))
    finding = ddp.digest_finding(["a", "b"])
    assert finding is not None
    assert finding.ranks == (0, 1)


def test_scaling_is_single_time_over_joint_time() -> None:
    assert ddp.scaling_data(1.0, 1.25, 4)["efficiency"] == 0.8


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
def test_lost_workers_give_one_message_on_all_ranks(text: str, expected: str) -> None:
    assert dataloader.describe_loader_error(RuntimeError(text)) == expected


def test_failed_loaders_are_one_finding_for_each_cause() -> None:
    assert dataloader.loader_findings([None, None], 1) == ()
    failures = [
        None,
        ("dataloader-failed", "OSError: full"),
        ("dataloader-failed", "RuntimeError: killed"),
        ("tmpdir-unusable", "OSError: AF_UNIX path too long"),
    ]
    findings = dataloader.loader_findings(failures, 2)
    assert [(finding.id, finding.ranks) for finding in findings] == [
        ("dataloader-failed", (1, 2)),
        ("tmpdir-unusable", (3,)),
    ]
    assert findings[0].message == "a DataLoader with 2 loader workers: OSError: full"


def socket_problem_in(folder: Path) -> str:
    """What a process says whose TMPDIR that is: multiprocessing remembers the folder."""
    command = (
        "from provision_runtime.smoke.phases import dataloader as d; print(d.socket_problem())"
    )
    child = subprocess.run(
        [sys.executable, "-c", command],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    return child.stdout.strip()


def test_a_folder_for_temporary_files_that_holds_sockets() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        assert socket_problem_in(folder) == "None"
        assert list(folder.iterdir()) == []
        # Python takes /tmp then.
        assert socket_problem_in(folder / "absent") == "None"


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="multiprocessing takes /tmp then (python/cpython#132124)"
)
def test_a_folder_for_temporary_files_with_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    assert socket_problem_in(folder) == f"{folder}: OSError: AF_UNIX path too long"


def test_a_loader_on_a_busy_machine_has_half_of_the_phase() -> None:
    assert dataloader.loader_timeout_s(300.0) == 150.0
    assert dataloader.loader_timeout_s(0.5) == 1.0  # 0 would mean no limit
