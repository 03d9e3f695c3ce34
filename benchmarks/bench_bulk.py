"""`provision lock --all` over 100 environments in one process, against one process for each; and its memory as the number grows.

Usage: python benchmarks/bench_bulk.py CHANNELS   (a folder or address under which the channels pytorch, nvidia and conda-forge are)
The environments are cells of the table that differ in torch, CUDA and Python and that the channels can solve: a first run finds them.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from measure import PROVISION, box, environment

from provision import catalog, sources

CELLS = 100
ALONE = 10  # so many of them are also locked each in a process of its own; their median stands for the others


@dataclass(frozen=True)
class Ran:
    seconds: float
    peak_mb: float
    locked: int


def main() -> None:
    channels = sys.argv[1] if len(sys.argv) > 1 else "../shared/repodata/channels"
    address = channels if "://" in channels else Path(channels).resolve().as_uri()
    everything = {name_of(request): request for request in cells()}
    lock_all(list(everything.values()), address)
    solvable = sorted(
        path.parent.name for path in (box() / "bulk" / "envs").glob("*/conda-lock.yml")
    )
    print(f"{len(solvable)} of {len(everything)} cells can be solved from these records")
    specs = [everything[name] for name in solvable[:: max(1, len(solvable) // CELLS)][:CELLS]]
    for count in (CELLS // 4, CELLS // 2, CELLS):
        together = lock_all(specs[:count], address)
        print(
            f"{together.locked:4} together   {together.seconds:7.2f} s   {together.peak_mb:5.0f} MB"
        )
    alone = [
        lock_one(folder, address)
        for folder in sorted((box() / "bulk" / "envs").iterdir())[:: CELLS // ALONE]
    ]
    each = statistics.median(ran.seconds for ran in alone)
    print(
        f"one alone (median of {len(alone)})   {each:.2f} s   {statistics.median(ran.peak_mb for ran in alone):.0f} MB"
    )
    print(
        f"ratio of {together.locked} together to {together.locked} alone: {together.seconds / (each * together.locked):.3f}   (target 0.1)"
    )


def cells() -> list[dict[str, object]]:
    """Specs of the newest releases first, from both channels."""
    requests = []
    for version, release in reversed(catalog.releases().items()):
        for source in ("conda-forge", "pytorch"):
            for build in sources.by_name(source).builds(release):
                for python in build.python or build.python_seen:
                    request = {
                        "torch": version,
                        "python": python,
                        "source": source,
                        "companions": False,
                    }
                    requests += [{**request, "cuda": build.cuda}, {**request, "cpu": True}]
    return requests


def name_of(request: dict[str, object]) -> str:
    return "-".join(str(value).lower() for value in request.values())


def lock_all(specs: list[dict[str, object]], address: str) -> Ran:
    place = box() / "bulk"
    shutil.rmtree(place, ignore_errors=True)
    for request in specs:
        folder = place / "envs" / name_of(request)
        folder.mkdir(parents=True)
        (folder / "spec.yml").write_text(json.dumps(request) + "\n")
    return measured([PROVISION, "lock", "--all"], place, address)


def lock_one(folder: Path, address: str) -> Ran:
    return measured([PROVISION, "lock", folder.name, "--relock"], box() / "bulk", address)


def measured(command: list[str], place: Path, address: str) -> Ran:
    """Run to the end; the peak of resident memory is what the kernel counted for this child."""
    env = {**environment(), "PROVISION_MIRRORS": f"*={address}"}
    start = time.perf_counter()
    child = subprocess.Popen(
        command, env=env, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, _, usage = os.wait4(child.pid, 0)
    return Ran(
        time.perf_counter() - start,
        usage.ru_maxrss / 1024,
        len(list((place / "envs").glob("*/conda-lock.yml"))),
    )


if __name__ == "__main__":
    main()
