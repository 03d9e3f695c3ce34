"""Seconds of `provision add` and `remove` of one small package from a warm cache, next to `uv pip install` of it.

Usage: python benchmarks/bench_add.py   (makes or reuses the environment bench-add in ./.bench)
provision also solves, writes a lock, and changes the prefix so that a kill at any step leaves the old or the new.
CPU seconds count children too; on a busy machine they say more than the wall clock.
"""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Mapping
from pathlib import Path

from measure import PROVISION, box, environment, seconds

RUNS = 3
NAME = "bench-add"
PACKAGE = "einops"
MODULE = "import einops"
AIM = (1.5, 1.2)  # seconds by the clock, and of CPU


def uv_environment(env: Mapping[str, str]) -> tuple[str, Path]:
    """uv, and a virtual environment to install into."""
    from provision.adapters.uv import uv_executable

    folder = box() / "uv-venv"
    uv = uv_executable()
    subprocess.run([uv, "venv", "--quiet", "--clear", folder], check=True, env=env)
    return uv, folder / "bin" / "python"


def main() -> None:
    env = environment()
    request = [NAME, "--torch", "2.3", "--cuda", "12.1", "--no-companions"]
    subprocess.run(
        [PROVISION, "build", *request, "--no-image", "--no-smoke", "--no-kernel"],
        check=True,
        env=env,
        cwd=box(),
    )
    uv, python = uv_environment(env)
    find_links = [f"--find-links={path}" for path in env.get("PIP_FIND_LINKS", "").split()]
    results: dict[str, list[tuple[float, float]]] = {"add": [], "remove": [], "uv": []}
    for run in range(RUNS + 1):  # the first warms the caches
        add = seconds([PROVISION, "add", NAME, PACKAGE], env)
        command = [PROVISION, "run", NAME, "--", "python", "-c", MODULE]
        subprocess.run(command, check=True, env=env, cwd=box())
        install = [uv, "pip", "install", "--quiet", *find_links, "--python", str(python), PACKAGE]
        by_uv = seconds(install, env)
        subprocess.run([uv, "pip", "uninstall", "--quiet", "--python", python, PACKAGE], check=True)
        remove = seconds([PROVISION, "remove", NAME, PACKAGE], env)
        if run:
            for name, taken in (("add", add), ("remove", remove), ("uv", by_uv)):
                results[name].append(taken)
    print(f"median of {RUNS}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, rows in results.items():
        wall, cpu = (statistics.median(column) for column in zip(*rows))
        aim = "" if name == "uv" else f"  (aim {AIM[0]} s, {AIM[1]} s CPU)"
        print(f"{name:10} {wall:6.2f} s wall, {cpu:5.2f} s CPU{aim}")


if __name__ == "__main__":
    main()
