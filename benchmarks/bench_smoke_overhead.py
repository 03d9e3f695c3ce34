"""What the smoke test's timing of all_reduce adds to a bare loop of the same calls, on Gloo, as ratios within one run.

Usage: python benchmarks/bench_smoke_overhead.py [PYTHON] [RANKS] [BYTES ROUNDS]
PYTHON is an interpreter that has torch (default: PROVISION_TEST_PYTHON, else this one). In the same processes and on the same
buffers the loops take turns, a few calls each, in every order, so that whatever else the machine does falls on all alike. Each loop
takes part twice: how far the bare loop is from itself is what this machine's noise makes of nothing. Printed are medians of the
rounds' ratios, each of medians of a call's time on its slowest rank, with the interval that holds 95 of 100 medians of rounds drawn
anew. Where that is wide, BYTES alone with more ROUNDS says more.
"""

from __future__ import annotations

import math
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Bytes, pairs, calls on each side of a pair.
SWEEP = ((8, 240, 5), (32 << 10, 240, 5), (1 << 20, 240, 5), (16 << 20, 144, 2))
TARGET = 1.03
DRAWS = 400


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
    """What phase collectives does, with its own operation and log of calls."""
    from provision_runtime.smoke import context, options, rank_env
    from provision_runtime.smoke.phases.collectives import measure, plan

    env = rank_env.from_environment()
    assert env is not None
    smoke_options = options.parse(["--out", ".", "--quick", "--backend", "gloo"])
    rank_context = context.RankContext(
        smoke_options, env, lambda: 60.0, backend="gloo", device="cpu"
    )
    row = plan.Row("float32", size, size // 4, 1, 1, 1)
    return lambda calls: measure.times_usec(rank_context, row, (source, work), calls)


def rank() -> None:
    import torch
    from torch import distributed

    sys.path.insert(0, str(ROOT))
    distributed.init_process_group("gloo")
    for size, rounds, calls in _sizes_of_arguments() or SWEEP:
        source = torch.zeros(size // 4)
        work = torch.empty_like(source)
        plain = partial(bare, source, work)
        mine = ours(size, source, work)
        _compare(size, rounds, calls, (mine, plain, plain, mine))
    distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


def _sizes_of_arguments() -> list[tuple[int, int, int]]:
    return [(int(sys.argv[2]), int(sys.argv[3]), 5)] if len(sys.argv) == 4 else []


def _compare(
    size: int, rounds: int, calls: int, loops: Sequence[Callable[[int], list[float]]]
) -> None:
    import torch

    orders = list(permutations(range(len(loops))))
    random.Random(1).shuffle(orders)
    for loop in loops:
        loop(calls)
    times = []
    for turn in range(rounds):
        taken = {side: loops[side](calls) for side in orders[turn % len(orders)]}
        times.append([taken[side] for side in range(len(loops))])
    _print(size, _of_slowest_ranks(torch.tensor(times, dtype=torch.float64)))


def _of_slowest_ranks(own: Any) -> Any:
    """Each call's time is that of the rank which took longest."""
    from torch import distributed

    distributed.all_reduce(own, op=distributed.ReduceOp.MAX)
    return own.tolist()


def _print(size: int, times: list[list[list[float]]]) -> None:
    if os.environ["RANK"] != "0":
        return
    medians = [[statistics.median(side) for side in turn] for turn in times]
    mine = [
        math.sqrt(first * last / (bare_one * bare_other))
        for first, bare_one, bare_other, last in medians
    ]
    again = [bare_other / bare_one for _, bare_one, bare_other, _ in medians]
    whole = [
        statistics.median(value for turn in times for side in sides for value in turn[side])
        for sides in ((0, 3), (1, 2))
    ]
    words = f"{len(times)} rounds; ours {whole[0]:.0f} us, bare {whole[1]:.0f} us"
    print(
        f"{size:>9} B  ours / bare {_middle(mine)}  (bare / bare {_middle(again)}; {words})",
        flush=True,
    )


def _middle(ratios: list[float]) -> str:
    """Their median, and between which two that of rounds drawn anew lies."""
    draw = random.Random(1)
    drawn = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    return (
        f"{statistics.median(ratios):.3f} [{drawn[DRAWS // 40]:.3f} {drawn[-DRAWS // 40 - 1]:.3f}]"
    )


def main() -> None:
    python = (
        sys.argv[1]
        if len(sys.argv) > 1
        else os.environ.get("PROVISION_TEST_PYTHON", sys.executable)
    )
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
    }
    print(f"all_reduce, {ranks} ranks, gloo, {python}; target: ours / bare <= {TARGET}", flush=True)
    started = [
        subprocess.Popen(
            [python, __file__, "--rank", *sys.argv[3:5]],
            env={**common, "RANK": str(number), "LOCAL_RANK": str(number)},
        )
        for number in range(ranks)
    ]
    sys.exit(max(child.wait() for child in started))


if __name__ == "__main__":
    rank() if sys.argv[1:2] == ["--rank"] else main()
