"""Seconds of the commands that should answer at once, and of a build with nothing to do, which writes nothing.

Usage: python benchmarks/bench_startup.py   (makes or reuses the environment torch2.3-cuda12.1-py311 in ./.bench)
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from measure import PROVISION, box, environment

RUNS = 9
NAME = f"torch2.3-cuda12.1-py3{sys.version_info[1]}"


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment(), cwd=box())
    return time.perf_counter() - start


def modified() -> dict[Path, int]:
    places = [
        box() / "envs",
        box() / "data" / "held",
        box() / "data" / "channels",
        box() / "jupyter",
    ]
    return {path: path.stat().st_mtime_ns for place in places for path in place.rglob("*")}


def main() -> None:
    request = ["--torch", "2.3", "--cuda", "12.1"]
    build = [PROVISION, "build", *request, "--no-image", "--no-smoke"]
    subprocess.run(build, check=True, env=environment(), cwd=box())
    before = modified()
    commands = {
        "bare interpreter": ([sys.executable, "-c", "pass"], None),
        "provision --help": ([PROVISION, "--help"], 0.25),
        "provision matrix": ([PROVISION, "matrix"], 0.4),
        "provision matrix explain": ([PROVISION, "matrix", "explain", *request], 0.4),
        "provision render": ([PROVISION, "render", NAME], 0.4),
        "build, nothing to do": (build, 2.0),
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(RUNS):  # interleaved: whatever else the machine does falls on all
        for name, (command, _) in commands.items():
            taken[name].append(seconds(command))
    for name, (_, target) in commands.items():
        print(
            f"{name:26} {statistics.median(taken[name]):.3f} s"
            + (f"  (target {target} s)" if target else "")
        )
    print(f"  writes                   {'nothing' if modified() == before else 'SOMETHING'}")


if __name__ == "__main__":
    main()
