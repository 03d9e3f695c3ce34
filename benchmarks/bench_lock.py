"""`provision lock` of one conda environment, whole, beside its pieces and beside the conda-lock command.

Usage: python benchmarks/bench_lock.py CHANNELS   (a folder or address under which the channels pytorch, nvidia and conda-forge are)
conda-lock needs an executable that solves: micromamba or conda on PATH (CONDA_SOLVER chooses conda's). The last column compares CPU.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from measure import PROVISION, box, environment, forget

RUNS = 9
NAME = "bench-lock"
FORGOTTEN = "the same, nothing remembered"
REQUEST = [NAME, "--torch", "2.6", "--cuda", "12.6", "--source", "conda-forge", "--companions"]
MACHINE = {"__cuda": "12.6", "__glibc": "2.28", "__linux": "5.10", "__unix": "0"}
# The solve in a process of its own: what is left if everything that is ours were free.
SOLVE = """
import asyncio, json, os, sys
import rattler
from rattler.package.build_string import BuildString
specs, channel, machine = json.loads(sys.argv[1])
virtual = [rattler.GenericVirtualPackage(rattler.PackageName(n), rattler.Version(v), BuildString("0")) for n, v in machine.items()]
specs = [rattler.MatchSpec(spec) for spec in specs]
asyncio.run(rattler.solve([rattler.Channel(channel)], specs, platforms=["linux-64", "noarch"], virtual_packages=virtual))
os._exit(0)
"""


@dataclass(frozen=True)
class Ran:
    seconds: float
    cpu: float
    peak_mb: float


def main() -> None:
    given = sys.argv[1] if len(sys.argv) > 1 else "../shared/repodata/channels"
    channels = given if "://" in given else Path(given).resolve().as_uri()
    place = box() / "lock"
    shutil.rmtree(place, ignore_errors=True)
    (place / "envs").mkdir(parents=True)
    env = {**environment(), "PROVISION_MIRRORS": f"*={channels}"}
    subprocess.run(
        [PROVISION, "lock", *REQUEST], check=True, env=env, cwd=place, capture_output=True
    )
    folder = place / "envs" / NAME
    commands = {
        "bare interpreter": [sys.executable, "-c", "pass"],
        "rattler, the solve alone": [
            sys.executable,
            "-c",
            SOLVE,
            json.dumps([specs_of(folder), f"{channels}/conda-forge", MACHINE]),
        ],
        "provision lock": [PROVISION, "lock", NAME, "--relock"],
        FORGOTTEN: [PROVISION, "lock", NAME, "--relock"],
        **conda_lock(folder, place, f"{channels}/conda-forge"),
    }
    runs_by_command: dict[str, list[Ran]] = {name: [] for name in commands}
    for _ in range(RUNS):  # interleaved: whatever else the machine does falls on all of them
        for name, command in commands.items():
            if name == FORGOTTEN:
                forget()
            runs_by_command[name].append(measured(command, place, env))
    report({name: middle(runs) for name, runs in runs_by_command.items()})


def specs_of(folder: Path) -> list[str]:
    import yaml

    dependencies = yaml.safe_load((folder / "environment.yml").read_text())["dependencies"]
    return [str(item) for item in dependencies]


def conda_lock(folder: Path, place: Path, channel: str) -> dict[str, list[str]]:
    """The conda-lock command on the same files. It writes a lock of its own."""
    solvers = (name for name in ("micromamba", "conda") if shutil.which(name))
    solver = next(solvers, None)
    if solver is None:
        raise SystemExit("Put micromamba or conda on PATH.")
    name = f"conda-lock lock with {solver}"
    command = [
        str(Path(sys.executable).parent / "conda-lock"),
        "lock",
        "--conda",
        str(shutil.which(solver)),
        "--micromamba" if solver == "micromamba" else "--no-micromamba",
        "-p",
        "linux-64",
    ]
    command += [
        "--file",
        str(folder / "environment.yml"),
        "--virtual-package-spec",
        str(folder / "virtual-packages.yml"),
    ]
    from provision.catalog import DATA

    names = str(DATA / "pypi-conda-names.yml")
    return {
        name: [
            *command,
            "--channel",
            channel,
            "--pypi_to_conda_lookup_file",
            names,
            "--lockfile",
            str(place / "theirs.yml"),
        ]
    }


def measured(command: list[str], place: Path, env: Mapping[str, str]) -> Ran:
    """Run to the end; CPU and the peak of resident memory are what the kernel counted for this child."""
    (place / "theirs.yml").unlink(missing_ok=True)
    start = time.perf_counter()
    child = subprocess.Popen(
        command, env=env, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{command[:3]} ended with {os.waitstatus_to_exitcode(status)}")
    return Ran(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def middle(runs: list[Ran]) -> Ran:
    return Ran(
        *(
            statistics.median(getattr(run, field) for run in runs)
            for field in ("seconds", "cpu", "peak_mb")
        )
    )


def report(results: Mapping[str, Ran]) -> None:
    own = results["provision lock"]
    print(f"median of {RUNS}                       wall      CPU   memory   provision lock / this")
    for name, ran in results.items():
        print(
            f"{name:32} {ran.seconds:6.3f} s {ran.cpu:6.3f} s {ran.peak_mb:5.0f} MB   {own.cpu / ran.cpu:6.2f}"
        )


if __name__ == "__main__":
    main()
