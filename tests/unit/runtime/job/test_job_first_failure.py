"""Which rank failed first: a rank that lost another one is never it, whoever was seen first."""

from __future__ import annotations

import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest

from provision_runtime.hang.causes import Cause
from provision_runtime.job.first_failure import RankFailure, read_failure, summary
from provision_runtime.report.findings import CATALOG, ERRORS

CLOCK = time.strftime("%H:%M:%S", time.localtime(100))
GLOO = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4711"
NCCL = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"


def raised(rank: int, error: str, at: float = 100, node: str = "n01", **fields: Any) -> RankFailure:
    return RankFailure(rank, node, at, 1, error=error, chain=error, site="train.py:88", **fields)


def died(rank: int, status: int, at: float = 100, **fields: Any) -> RankFailure:
    return RankFailure(rank, "n01", at, status, **fields)


@pytest.mark.parametrize(
    ("failures", "first_line"),
    [
        (
            [raised(0, GLOO, 99), raised(5, "OutOfMemoryError: CUDA out of memory", node="n02")],
            f"rank 5 on n02 failed first ({CLOCK}): OutOfMemoryError: CUDA out of memory, train.py:88; "
            "15 others ended because of it",
        ),
        (
            [raised(1, NCCL, 99), died(0, -signal.SIGTERM, 98), died(3, -signal.SIGKILL)],
            f"rank 3 on n01 failed first ({CLOCK}): SIGKILL; 15 others ended because of it",
        ),
        (
            [died(0, -signal.SIGKILL, oom_kills=1)],
            f"rank 0 on n01 failed first ({CLOCK}): SIGKILL; 15 others ended because of it",
        ),
        (
            [raised(1, "KeyError: 1"), raised(0, "KeyError: 0", 101)],
            f"ranks 0, 1 failed alike, rank 1 on n01 first ({CLOCK}): KeyError: 1, train.py:88; "
            "14 others ended because of it",
        ),
        (
            [died(1, 1), died(0, 1, 101)],
            f"ranks 0, 1 failed alike, which of them first is unknown ({CLOCK}): status 1 without an error; "
            "see its lines above; 14 others ended because of it",
        ),
        (
            [died(0, 1, 99), died(1, -signal.SIGSEGV, site="train.py:9")],
            f"rank 1 on n01 failed first ({CLOCK}): SIGSEGV, train.py:9; 15 others ended because of it",
        ),
        (
            [raised(1, GLOO, 101), RankFailure(0, "n01", 100, 0)],
            f"rank 0 ended without an error ({CLOCK}): rank 1 on n01 lost it "
            f"({time.strftime('%H:%M:%S', time.localtime(101))}): {GLOO}, train.py:88",
        ),
        (
            [raised(1, GLOO)],
            f"no rank reported an error of its own: rank 1 on n01 lost another rank first ({CLOCK}): {GLOO}, "
            "train.py:88",
        ),
        (
            [
                RankFailure(8, "n03", 100, 1, "the node is gone", "the node is gone"),
                raised(0, GLOO, 99),
            ],
            f"rank 8 on n03 failed first ({CLOCK}): the node is gone; 15 others ended because of it",
        ),
    ],
)
def test_the_first_failure(failures: list[RankFailure], first_line: str) -> None:
    assert summary(failures, world_size=16, nodes=2)[0] == first_line


def test_no_failures_no_lines() -> None:
    assert summary([], world_size=2, nodes=1) == []


@pytest.mark.parametrize(
    ("failure", "known"),
    [
        (raised(0, "torch.OutOfMemoryError: CUDA out of memory. Tried"), "gpu-memory-full"),
        (raised(0, "OSError: [Errno 28] No space left on device: '/ckpt/a'"), "disk-full"),
        (raised(0, "RuntimeError: unable to write to file </torch_1_2>: shared memory"), "shm-full"),
        (raised(0, "ModuleNotFoundError: No module named 'wandb'"), "module-absent"),
        (raised(0, "FileExistsError: [Errno 17] File exists: 'out'"), "makedirs-race"),
        (raised(0, "RuntimeError: CUDA error: device-side assert triggered"), "device-assert"),
        (raised(0, "RuntimeError: DefaultCPUAllocator: can't allocate memory"), "out-of-memory"),
        (raised(0, "RuntimeError: CUDA error: invalid device ordinal"), "device-absent"),
        (raised(0, "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly"), "worker-ended"),
        (raised(0, "BdbQuit: "), "breakpoint"),
        (raised(0, "DistBackendError: ... Duplicate GPU detected : rank 1"), "gpu-shared"),
        (raised(0, "ImportError: a.so: undefined symbol: _ZN3c104cuda9Se"), "extension-foreign"),
        (raised(0, "DistNetworkError: port: 29500, name: EADDRINUSE"), "port-busy"),
        (raised(0, GLOO), "early-exit"),
        (raised(0, "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", oom_kills=1),
         "oom-killed"),
        (died(0, -signal.SIGKILL), "rank-killed"),
        (died(0, -signal.SIGKILL, oom_kills=2), "rank-oom-killed"),
        (died(0, -signal.SIGBUS), "rank-crashed"),
        (raised(0, "ValueError: x"), ""),
        (died(0, 3), ""),
    ],
)  # fmt: skip
def test_known_errors_have_an_id_with_advice(failure: RankFailure, known: str) -> None:
    assert failure.advice_id == known
    lines = summary([failure], 1, 1)
    assert any(line.startswith(f"[{known}] ") for line in lines) == bool(known)


def test_status_of_a_shell_around_a_rank_is_that_of_its_signal() -> None:
    failure = SimpleNamespace(timestamp=7, exitcode=128 + signal.SIGKILL, error_file_data={})
    assert read_failure(0, failure, "n01").advice_id == "rank-killed"


def test_every_known_error_is_in_a_catalog() -> None:
    assert ERRORS.keys() <= CATALOG.keys()


TRACEBACK = """\
Traceback (most recent call last):
  File "/w/data.py", line 3, in load
    raise KeyError("a")
KeyError: 'a'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/w/train.py", line 88, in <module>
    step()
  File "/e/lib/python3.11/site-packages/torch/nn/module.py", line 9, in forward
    raise RuntimeError(text)
RuntimeError: step 3 failed
second line
"""


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            {"message": "RuntimeError: step 3 failed\nsecond line",
             "extraInfo": {"py_callstack": TRACEBACK, "timestamp": "7"}},
            ("RuntimeError: step 3 failed", True),
        ),
        ("<NONE>", ("", False)),
    ],
)  # fmt: skip
def test_torchs_failures_are_read(data: Any, expected: tuple[str, bool]) -> None:
    torchs = SimpleNamespace(error_file_data={"message": data}, timestamp=7, exitcode=1)
    failure = read_failure(3, torchs, "n01")
    assert (failure.rank, failure.node, failure.time, failure.status) == (3, "n01", 7.0, 1)
    assert (failure.error, "KeyError: 'a'" in failure.chain) == expected


def test_cause_from_how_all_ranks_ended_is_said_where_the_error_has_none() -> None:
    cause = Cause("collective-on-one-rank", [0], "rank 0 is alone", "Call it on all ranks.")
    crashed = summary([died(0, -signal.SIGABRT)], 2, 1, cause)
    assert crashed[1:] == ["[collective-on-one-rank] rank 0 is alone", "    Call it on all ranks."]
    known = summary([raised(0, "CUDA out of memory")], 2, 1, cause)
    assert known[1].startswith("[gpu-memory-full]")
    vague = Cause("rank-failed", [0], "it failed", "Look.")
    assert summary([died(0, -signal.SIGSEGV)], 2, 1, vague)[1].startswith("[rank-crashed]")
    same = Cause("early-exit", [1], "rank 1 came to its end in lightning", "Take part.")
    assert summary([raised(0, GLOO)], 2, 1, same)[1].endswith(" in lightning")
