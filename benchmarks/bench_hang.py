"""What `provision why` costs a job that is never asked: the hook's CPU at the start of Python, and the
record of collectives (`--record`) per call, against a step of 10 ms.

Usage: python benchmarks/bench_hang.py [PYTHON]
PYTHON is an interpreter that has torch (default: PROVISION_TEST_PYTHON, else this one). CPU times that
the process reads of itself: differences between whole starts are as large as their noise. CALLS is of a
step: more than most have.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STARTS, CALLS, STEP_S = 20, 10, 0.010
HOOK = """
import os, time
os.environ.update(RANK="0", WORLD_SIZE="1")
start = time.process_time_ns()
import provision_runtime.hang.hook
print(time.process_time_ns() - start)
"""
RECORD = """
import sys, timeit; sys.path.insert(0, sys.argv[1])
import types; import torch, torch.distributed; from provision_runtime.hang import record
calls = record.CallRecord(sys.argv[2]); tensor = torch.ones(4)
module = types.SimpleNamespace(all_reduce=lambda tensor, group=None: None, torch=torch, ProcessGroup=torch.distributed.ProcessGroup)
function = record._recorded("all_reduce", module, calls)
print(min(timeit.repeat(lambda: function(tensor), number=2000, repeat=15)) / 2000)
"""


def hook_cpu_s(python: str) -> float:
    """CPU time of the hook alone, in the process that it starts in: the median of several starts."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    times = []
    for _ in range(STARTS):
        run = subprocess.run([python, "-c", HOOK], env=variables, capture_output=True, check=True)
        times.append(int(run.stdout) / 1e9)
    return statistics.median(times)


def main() -> None:
    python = next(iter(sys.argv[1:]), os.environ.get("PROVISION_TEST_PYTHON", sys.executable))
    print(f"hook at the start of a rank: {hook_cpu_s(python) * 1e3:.2f} ms of CPU (target: 2)")
    with tempfile.TemporaryDirectory() as folder:
        arguments = [python, "-c", RECORD, str(ROOT), f"{folder}/calls"]
        call_s = float(subprocess.run(arguments, capture_output=True, check=True).stdout)
    ratio = CALLS * call_s / STEP_S
    print(
        f"record: {call_s * 1e6:.1f} us a call; {CALLS} in a step of 10 ms: {ratio:.2%} (target: 1 %)"
    )


if __name__ == "__main__":
    main()
