"""What saves cost in CPU time: of 1 GB, beside dcp.save; of 20,000 and 3,000 tensors of 64 bytes, beside safetensors and torch.save.

Usage: python benchmarks/bench_checkpoint_cost.py [--gb 1] [--rounds 5] [--tensors 20000]
(needs torch in this interpreter, or in the one that PROVISION_TEST_PYTHON names; safetensors where it is there; three times the state
on the disk)

Rivals take turns, in every other round the other way around; a ratio is the median over rounds of the two that were measured in one. The
first round is not counted. CPU time is that of the process, with all its threads, in the kernel too; neighbors of a shared machine change it
less than what the clock shows, which stands beside it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_checkpoint import sync
from measure import box

ROOT = Path(__file__).resolve().parent.parent
BIG_TENSORS = 100


def main() -> None:
    python = os.environ.get("PROVISION_TEST_PYTHON", sys.executable)
    if "--here" in sys.argv:
        measure()
    elif subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        print(f"checkpoint costs: not measured, {python} has no torch (PROVISION_TEST_PYTHON)")
    else:
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        command = [python, "-s", __file__, "--here", *sys.argv[1:]]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths})


def measure() -> None:
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tensors", type=int, default=20_000)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    from provision_runtime.checkpoint import hashes

    kind = "with" if hashes.XXH3_128 else "without"
    load = os.getloadavg()[0]
    print(f"torch {torch.__version__}, {kind} xxhash, {os.cpu_count()} processors, load {load:.0f}")
    place = box() / "checkpoint-cost"
    try:
        big(place, chosen.gb, chosen.rounds)
        for count in (chosen.tensors, 3000):
            small(place, count, chosen.rounds)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def big(place: Path, gb: float, rounds: int) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    from provision_runtime import checkpoint

    length = int(gb * 1e9) // 4 // BIG_TENSORS
    state = {f"layer{index}": torch.randn(length) for index in range(BIG_TENSORS)}

    def dcp_save() -> None:
        dcp.save(state, checkpoint_id=str(place / "dcp"))
        for path in [*(place / "dcp").iterdir(), place / "dcp"]:
            sync(path)

    def save() -> None:
        checkpoint.save(state, place / "first", step=1)

    def save_changed() -> None:
        checkpoint.save(state, place / "run", step=1)

    def save_async() -> None:
        checkpoint.save_async(state, place / "run", step=1).result()

    def prepare() -> None:
        for name in ("dcp", "first"):
            shutil.rmtree(place / name, ignore_errors=True)
        for value in state.values():
            value.add_(1)
        place.mkdir(parents=True, exist_ok=True)
        os.sync()

    rivals = {
        "dcp.save + fsync": dcp_save,
        "first save": save,
        "save, all changed": save_changed,
        "save_async, all changed, until committed": save_async,
    }
    seconds = in_turn(rivals, rounds, prepare)
    ratio(seconds, "first save", "dcp.save + fsync", "CPU <= 1.2, clock <= 1.0")
    ratio(seconds, "save, all changed", "dcp.save + fsync", "CPU <= 1.3")
    ratio(seconds, "save_async, all changed, until committed", "save, all changed", "<= 1.3")


def small(place: Path, count: int, rounds: int) -> None:
    import torch

    from provision_runtime import checkpoint

    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    state = {f"layer{n // 10}.block.{n % 10}.weight": torch.randn(16) for n in range(count)}
    print(f"{count} tensors of 64 bytes:")

    def save(**options: Any) -> Callable[[], None]:
        return lambda: (checkpoint.save(state, place / "run", step=1, **options), None)[1]

    rivals: dict[str, Callable[[], None]] = {
        "torch.save": lambda: torch.save(state, place / "file.pt"),
        "full save": save(incremental=False),
        "save, one changed": save(),
        "load": lambda: (checkpoint.load(state, place / "run"), None)[1],
    }
    save()()
    sizes = {"ours": disk_bytes(place / "run"), "the elements": 64 * count}
    try:
        from safetensors.torch import save_file

        rivals["safetensors"] = lambda: save_file(state, place / "file.safetensors")
        rivals["safetensors"]()
        sizes["safetensors"] = (place / "file.safetensors").stat().st_size
    except ImportError:
        print("  without safetensors, which is not installed")
    seconds = in_turn(rivals, rounds, lambda: next(iter(state.values())).add_(1))
    ratio(seconds, "full save", "torch.save", "CPU <= 2")
    ratio(seconds, "save, one changed", "full save", "CPU <= 1")
    if "safetensors" in rivals:
        ratio(seconds, "full save", "safetensors", "CPU <= 3")
    print(f"  bytes: {sizes}; ours, times safetensors' (<= 1.5): ", end="")
    print(f"{sizes['ours'] / sizes['safetensors']:.2f}" if "safetensors" in sizes else "-")


def in_turn(
    rivals: dict[str, Callable[[], None]], rounds: int, prepare: Callable[[], object]
) -> dict[str, list[tuple[float, float]]]:
    """The seconds of CPU and clock of each round, by rival. Prints their medians."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in rivals}
    for number in range(rounds + 1):
        for name, action in list(rivals.items())[:: -1 if number % 2 else 1]:
            prepare()
            cpu, clock = time.process_time(), time.perf_counter()
            action()
            taken = time.process_time() - cpu, time.perf_counter() - clock
            if number:
                seconds[name].append(taken)
    for name, pairs in seconds.items():
        cpu, clock = map(statistics.median, zip(*pairs))
        print(f"  {name}: CPU {cpu:.2f} s, by the clock {clock:.2f} s")
    return seconds


def ratio(
    seconds: dict[str, list[tuple[float, float]]], name: str, rival: str, target: str
) -> None:
    pairs = list(zip(seconds[name], seconds[rival]))
    cpu, clock = (statistics.median(own[i] / other[i] for own, other in pairs) for i in (0, 1))
    print(f"  {name}, over {rival}: CPU {cpu:.2f}, clock {clock:.2f} (target {target})")


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
