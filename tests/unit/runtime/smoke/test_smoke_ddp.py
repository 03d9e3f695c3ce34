"""The phase ddp's judgments that need no torch: gradients of other ranks, and workers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from provision_runtime.smoke.phases import dataloader, ddp


@pytest.mark.parametrize(
    ("digests", "ranks"), [("aa", None), ("baa", (0,)), ("ab", (0, 1)), ("aabb", (0, 1, 2, 3))]
)
def test_ranks_with_deviating_gradients_are_named(
    digests: str, ranks: tuple[int, ...] | None
) -> None:
    finding = ddp.digest_finding(list(digests))
    assert (finding.ranks if finding else None) == ranks


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
