"""Making a prefix against `uv pip sync` of the same wheels into a venv, warm and cold, and the host process's memory.

Usage: python benchmarks/bench_prefix.py [--pairs N] [--cold]   (--cold downloads 2.6 GB twice)
Each pair runs both, alternating which is first; the figure is the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from measure import PROVISION, box, environment

from provision import lockfile
from provision.adapters import uv as wheels

NAME = "torch2.3-cuda12.1-py311"


def timed(command: list[str], env: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=env, cwd=box())
    return time.perf_counter() - start


def ours(env: dict[str, str]) -> float:
    shutil.rmtree(box() / "data" / "projects", ignore_errors=True)
    return timed([PROVISION, "env", "create", NAME], env)


def theirs(env: dict[str, str]) -> float:
    venv, locked = box() / "venv", box() / "requirements.txt"
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run(
        [wheels.uv_executable(), "venv", "--quiet", "--python", sys.executable, str(venv)],
        check=True,
    )
    locked.write_text(
        wheels.hashed_requirements(lockfile.read(box() / "envs" / NAME / lockfile.FILE).by("pip"))
    )
    python = str(venv / "bin" / "python")
    return timed(
        [
            wheels.uv_executable(),
            "pip",
            "sync",
            "--quiet",
            "--require-hashes",
            "--python",
            python,
            str(locked),
        ],
        env,
    )


def cold(which: str) -> float:
    """One run from an empty cache of uv; conda's packages are a local file here and stay."""
    cache = box() / "uv-cold"
    shutil.rmtree(cache, ignore_errors=True)
    env = {**environment(), "UV_CACHE_DIR": str(cache)}
    try:
        return ours(env) if which == "ours" else theirs(env)
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--pairs", type=int, default=3)
    options.add_argument("--cold", action="store_true")
    chosen = options.parse_args()
    env = environment()
    subprocess.run(
        [PROVISION, "lock", "--torch", "2.3", "--cuda", "12.1"], check=True, env=env, cwd=box()
    )
    ours(env), theirs(env)  # fill the caches
    pairs = [
        (ours(env), theirs(env)) if index % 2 else tuple(reversed((theirs(env), ours(env))))
        for index in range(chosen.pairs)
    ]
    for mine, uv in pairs:
        print(f"  warm pair: provision {mine:.1f} s, uv pip sync {uv:.1f} s")
    mine, uv = (statistics.median(column) for column in zip(*pairs))
    print(
        f"warm: median provision {mine:.1f} s, uv {uv:.1f} s; ours - 1.3 x uv = {mine - 1.3 * uv:+.1f} s (target <= 3 s)"
    )
    if chosen.cold:
        first, second = cold("theirs"), cold("ours")
        print(
            f"cold: provision {second:.1f} s, uv {first:.1f} s, ratio {second / first:.2f} (target <= 1.2)"
        )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"largest process of all runs, uv included: {peak:.0f} MB")
    print(f"host process: {host_memory_mb(env):.0f} MB (target < 400 MB)")


def host_memory_mb(env: dict[str, str]) -> float:
    """Peak resident memory of the provision process itself, without its children, over making the prefix."""
    script = (
        "import resource, sys\nfrom provision.cli.main import cli\n"
        f"sys.argv = ['provision', 'env', 'create', '{NAME}']\n"
        "try: cli()\nexcept SystemExit: pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    shutil.rmtree(Path(env["PROVISION_DATA"]) / "projects", ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=env, cwd=box()
    )
    return int(done.stdout.split()[-1]) / 1024


if __name__ == "__main__":
    main()
