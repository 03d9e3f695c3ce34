"""`provision why` on ranks that torchrun has started, which hang or fail, with Gloo."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from provision_runtime.hang import diagnosis, model
from provision_runtime.hang.collect import Selection, collect

pytestmark = pytest.mark.torch
HEAD = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo"); rank = dist.get_rank(); x = torch.ones(4)
"""
# The cause, its rank and its line in the program below HEAD.
PROGRAMS = {
    "collective-on-one-rank": (0, 4, "if rank == 0:\n    dist.barrier()\ndist.all_reduce(x)\n"),
    "early-return": (
        1,
        4,
        "def f():\n    if rank == 1: return\n    dist.barrier()\nf()\ndist.all_reduce(x)\n",
    ),
    "rank-stopped": (
        1,
        3,
        "if rank == 1: import os; os.kill(os.getpid(), 19)\ndist.barrier()\n",
    ),
    "rank-failed": (1, 3, "if rank == 1: raise ValueError('bad batch')\ndist.barrier()\n"),
}


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(1)


@pytest.mark.parametrize("id", PROGRAMS)
def test_cause_is_named_with_rank_and_line(tmp_path: Path, runtime_python: Path, id: str) -> None:
    rank, line, body = PROGRAMS[id]
    (tmp_path / "train.py").write_text(HEAD + body)
    command = f"{runtime_python} -m torch.distributed.run --nproc-per-node=2 --standalone train.py"
    launcher = subprocess.Popen(
        command.split(),
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )

    def has_settled() -> bool:
        snapshot = collect(Selection(pid=launcher.pid), timeout_s=60)
        results.extend(diagnosis.diagnose([snapshot]))
        return bool(results and results[-1].causes)

    results: list[diagnosis.Diagnosis] = []
    try:
        until(has_settled)
        [cause] = results[-1].causes
        assert (cause.id, cause.ranks) == (id, [rank])
        assert cause.line is not None and cause.line.line == line
        assert {result.verdict for result in results[:-1]} <= {diagnosis.NO_HANG, diagnosis.UNKNOWN}
    finally:
        for state in collect(Selection(pid=launcher.pid), observed_s=0).ranks:
            if state.kind not in (model.FAILED, model.ENDED, model.GONE):
                os.kill(state.pid, signal.SIGKILL)
        launcher.kill()
        launcher.wait()
