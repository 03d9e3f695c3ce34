"""Seconds of `provision --help`, of all of `provision matrix`, and of a build with nothing to do, which writes nothing.

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


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment(), cwd=box())
    return time.perf_counter() - start


def modified() -> dict[Path, int]:
    places = [box() / "envs", box() / "data" / "held", box() / "data" / "channels", box() / "jupyter"]
    return {path: path.stat().st_mtime_ns for place in places for path in place.rglob("*")}


def main() -> None:
    request = ["--torch", "2.3", "--cuda", "12.1", "--no-image", "--no-smoke"]
    subprocess.run([PROVISION, "build", *request], check=True, env=environment(), cwd=box())
    before = modified()
    helps, bares, tables, builds = [], [], [], []
    for _ in range(RUNS):  # interleaved: whatever else the machine does falls on all
        helps.append(seconds([PROVISION, "--help"]))
        bares.append(seconds([sys.executable, "-c", "pass"]))
        tables.append(seconds([PROVISION, "matrix"]))
        builds.append(seconds([PROVISION, "build", *request]))
    print(f"provision --help        {statistics.median(helps):.3f} s  (bare interpreter {statistics.median(bares):.3f} s; target 0.25 s)")
    print(f"provision matrix        {statistics.median(tables):.3f} s  (target 0.4 s)")
    print(f"build, nothing to do    {statistics.median(builds):.3f} s  (target 2 s)")
    print(f"  writes                {'nothing' if modified() == before else 'SOMETHING'}")


if __name__ == "__main__":
    main()
