"""What the smoke test's timing of all_reduce adds to a bare loop of the same calls, on Gloo, as ratios within one run.

Usage: python benchmarks/bench_smoke_overhead.py [PYTHON] [RANKS]
PYTHON is an interpreter that has torch (default: PROVISION_TEST_PYTHON, else this one). In the same processes and on the same
buffers both loops take turns, a few calls each, in the order A B B A, so that whatever else the machine does falls on both alike.
Printed are the median of the pairs' ratios (slowest rank's median, ours / bare) and the ratio of all times' medians.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Bytes, pairs, calls on each side of a pair.
SWEEP = ((8, 60, 20), (32 << 10, 60, 20), (1 << 20, 60, 10), (16 << 20, 30, 4))
TARGET = 1.03


def bare(source: Any, work: Any, calls: int) -> list[float]:
    """The loop that anybody would write."""
    from torch import distributed

    times = []
    for _ in range(calls):
        work.copy_(source)
        distributed.barrier()
        started = time.perf_counter()
        distributed.all_reduce(work)
        times.append((time.perf_counter() - started) * 1e6)
    return times


def ours(size: int, source: Any, work: Any) -> Callable[[int], list[float]]:
    """What phase collectives does, with its own operation and record of calls."""
    from provision.inside.smoke import options, place, session
    from provision.inside.smoke.phases.collectives import operations, plan, sweep

    here = place.from_environment()
    assert here is not None
    chosen = options.Options(Path(), Path(), None, "quick", "gloo", 60.0, (), 1, None, None, None, False, ())
    own = session.Session(chosen, here, lambda: 60.0, backend="gloo", device="cpu")
    row = plan.Row("all_reduce", "float32", size, size // 4, 1, 1, 1)
    buffers = operations.Buffers([row], "float32", "cpu")
    buffers.given, buffers.scratch = source, work
    peers = operations.Peers(here.rank, here.world_size, "gloo")
    found = operations.operation(row, "out_of_place", buffers, peers)
    return lambda calls: sweep.Sweep(own, peers).timed(row, found, calls)


def rank() -> None:
    import torch
    from torch import distributed

    sys.path.insert(0, str(ROOT))
    distributed.init_process_group("gloo")
    for size, pairs, calls in SWEEP:
        source = torch.zeros(size // 4)
        work = torch.empty_like(source)
        both: list[Callable[[int], list[float]]] = [ours(size, source, work), lambda calls, s=source, w=work: bare(s, w, calls)]  # type: ignore[misc]
        for measure in both:
            measure(calls)
        times: list[list[list[float]]] = []
        for pair in range(pairs):
            order = (0, 1) if pair % 2 else (1, 0)
            taken = {side: both[side](calls) for side in order}
            times.append([taken[0], taken[1]])
        _print(size, _of_slowest_ranks(torch.tensor(times, dtype=torch.float64)))
    distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


def _of_slowest_ranks(own: Any) -> Any:
    """Each call's time is that of the rank which took longest."""
    from torch import distributed

    distributed.all_reduce(own, op=distributed.ReduceOp.MAX)
    return own.tolist()


def _print(size: int, times: list[list[list[float]]]) -> None:
    if os.environ["RANK"] != "0":
        return
    medians = [[statistics.median(side) for side in pair] for pair in times]
    paired = statistics.median(mine / other for mine, other in medians)
    whole = [statistics.median(value for pair in times for value in pair[side]) for side in (0, 1)]
    words = f"ours {whole[0]:9.1f} us, bare {whole[1]:9.1f} us"
    print(f"{size:>9} B  paired ratio {paired:.3f}  of all {whole[0] / whole[1]:.3f}  ({len(times)} pairs; {words})", flush=True)


def main() -> None:
    python = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("PROVISION_TEST_PYTHON", sys.executable)
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    print(f"all_reduce, {ranks} ranks, gloo, {python}; target: paired ratio <= {TARGET}", flush=True)
    started = [
        subprocess.Popen([python, __file__, "--rank"], env={**common, "RANK": str(number), "LOCAL_RANK": str(number)})
        for number in range(ranks)
    ]
    sys.exit(max(child.wait() for child in started))


if __name__ == "__main__":
    rank() if sys.argv[1:] == ["--rank"] else main()
