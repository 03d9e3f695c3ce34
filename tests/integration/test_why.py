"""`provision why` on ranks that torchrun has started, which hang or fail, with Gloo."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from provision_runtime.hang import diagnosis, model, record
from provision_runtime.hang.collect import ProcessSelection, collect
from tests.conftest import ROOT

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

# Healthy programs that take longer than SILENCE_S, and look idle in parts. `work` uses the CPU.
SILENCE_S = 6
WORK = f"""\
import os, sys, subprocess, time
def work(end={3 * SILENCE_S} + time.time()):
    while time.time() < end:
        sum(range(1000))
"""
HEALTHY = {
    "evaluation": "if rank == 0: work()\ndist.barrier()\n",
    "compilation": "if rank == 0: subprocess.run([sys.executable, '-c', CODE])\ndist.barrier()\n",
    "steps": "for _ in range(20): time.sleep(1); dist.all_reduce(x)\n",
    "sleep": "if rank == 0: time.sleep(20)\ndist.barrier()\n",
    "save": "end = time.time() + 20\nwhile rank == 0 and time.time() < end:\n"
    "    torch.save(torch.zeros(1 << 20), 'state.pt'); time.sleep(1)\ndist.barrier()\n",
    "loader": "class D(torch.utils.data.Dataset):\n"
    "    def __len__(self): return 2\n"
    "    def __getitem__(self, n): work(); return n\n"
    "for b in torch.utils.data.DataLoader(D(), num_workers=1): pass\ndist.barrier()\n",
    "join": "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    "model = DDP(torch.nn.Linear(4, 1))\nwith model.join():\n"
    "    for _ in range(1 if rank else 20): time.sleep(1); model(x).sum().backward()\n",
    "prompt": "if rank == 0: import pdb; pdb.set_trace()\ndist.barrier()\n",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [*HEALTHY, "imports"])
def test_healthy_programs_raise_nothing(tmp_path: Path, runtime_python: Path, name: str) -> None:
    body = HEALTHY.get(name, "dist.barrier()\n")
    body = body.replace("CODE", repr(WORK + "work()"))
    start = "if os.environ['RANK'] == '1': work()\n" if name == "imports" else ""
    (tmp_path / "train.py").write_text(WORK + start + HEAD + body)
    words = f"-m provision_runtime launcher --hang-after {SILENCE_S} --on-hang end -- "
    words += "-m torch.distributed.run --nproc-per-node=2 --standalone train.py"
    terminal, stdin = os.openpty()
    with subprocess.Popen(
        [runtime_python, *words.split()],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        assert run.stdout is not None
        output = ""
        while line := run.stdout.readline():
            output += line
            if "dist.barrier()" in line and name == "prompt":
                time.sleep(3 * SILENCE_S)
                os.write(terminal, b"c\n")
    os.close(stdin)
    os.close(terminal)
    assert run.returncode == 0 and "no rank has done anything" not in output, output


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user")
def test_a_rank_that_may_not_be_examined_is_unknown_and_not_gone(short_path: Path) -> None:
    """As another user, since root may examine all; who may not reach this checkout."""
    shutil.copytree(ROOT / "provision_runtime", short_path / "provision_runtime")
    code = "import sys; sys.path.insert(0, sys.argv[1]); "
    rank = (
        "import ctypes, time, provision_runtime.hang.hook; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)"
    )
    look = "from provision_runtime.hang.collect import *; print(collect(ProcessSelection(), observed_s=0))"
    user = ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", sys.executable, "-c"]
    numbers = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "none", "MASTER_PORT": "1"}
    with subprocess.Popen(
        [*user, f"{code}{rank}; print(1, flush=True); time.sleep(600)", str(short_path)],
        env=numbers,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        seen = subprocess.run(
            [*user, code + look, str(short_path)],
            env={},
            capture_output=True,
            text=True,
            check=True,
        )
        process.kill()
    assert "kind='unknown'" in seen.stdout and "may not examine it" in seen.stdout, seen.stdout


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(1)


@pytest.mark.parametrize("id", PROGRAMS)
def test_cause_is_named_with_rank_and_line(tmp_path: Path, runtime_python: Path, id: str) -> None:
    rank, line, body = PROGRAMS[id]
    (tmp_path / "train.py").write_text(HEAD + body)
    options = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")
    assert_cause(tmp_path, [runtime_python, *options, "train.py"], id, rank, line)


# The numbers of ranks are set after they start.
SPAWNED = """\
import torch, torch.distributed as dist, torch.multiprocessing as mp
def main(rank, size):
    dist.init_process_group("gloo", init_method="file://FOLDER/store", rank=rank, world_size=size)
    other = dist.new_group([0, 1])  # in one group, Gloo may fail on calls that do not match
    if rank == 1:
        dist.barrier(group=other)
    dist.all_reduce(torch.ones(4))
if __name__ == "__main__":
"""
STARTS = {
    "spawn": "    mp.spawn(main, args=(2,), nprocs=2)\n",
    "processes": "    for rank in (1, 0): mp.Process(target=main, args=(rank, 2)).start()\n",
}


@pytest.mark.parametrize("start", STARTS)
def test_ranks_that_a_program_starts_itself(
    tmp_path: Path, runtime_python: Path, start: str
) -> None:
    program = SPAWNED.replace("FOLDER", str(tmp_path)) + STARTS[start]
    (tmp_path / "train.py").write_text(program)
    assert_cause(tmp_path, [runtime_python, "train.py"], "collective-on-one-rank", 1, 6)


RECORDED = """\
import sys; from provision_runtime.hang import record; record.start(sys.argv[1])
import torch, torch.distributed as dist
class Own: shape, group_name = [[]], []
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}.store", rank=0, world_size=1)
group = dist.new_group([0])
dist.all_reduce(torch.ones(4), group=group)
dist.all_gather_object([None], Own())
"""


def test_calls_are_recorded_with_the_lines_of_the_program(
    tmp_path: Path, runtime_python: Path
) -> None:
    (tmp_path / "train.py").write_text(RECORDED)
    subprocess.run([runtime_python, "train.py", tmp_path / "calls"], cwd=tmp_path, check=True)
    calls = record.read(str(tmp_path / "calls"), str(tmp_path))
    lines = [call.line.line if call.line else None for call in calls]
    assert [call.op for call in calls][:3] == ["new_group", "all_reduce", "all_gather_object"]
    assert lines[:3] == [5, 6, 7] and set(lines[3:]) <= {7}, calls  # torch's own calls within it
    assert (calls[1].shape, calls[1].dtype, calls[1].sequence) == ([4], "float32", 1)
    assert calls[1].group != calls[0].group and calls[2].shape is None


def assert_cause(
    folder: Path, command: Sequence[str | Path], id: str, rank: int, line: int
) -> None:
    """Asserts that the ranks of a command hang, and why; ends them."""
    launcher = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )

    def has_settled() -> bool:
        snapshot = collect(ProcessSelection(pid=launcher.pid), timeout_s=60)
        results.extend(diagnosis.diagnose([snapshot]))
        return bool(results and results[-1].causes)

    results: list[diagnosis.HangDiagnosis] = []
    try:
        until(has_settled)
        [cause] = results[-1].causes
        assert (cause.id, cause.ranks) == (id, [rank]), results[-1]
        assert cause.line is not None and cause.line.line == line
        assert {result.verdict for result in results[:-1]} <= {diagnosis.NO_HANG, diagnosis.UNKNOWN}
    finally:
        for state in collect(ProcessSelection(pid=launcher.pid), observed_s=0).ranks:
            if state.kind not in (model.FAILED, model.ENDED, model.GONE):
                os.kill(state.pid, signal.SIGKILL)
        launcher.kill()
        launcher.wait()
