"""CPU of the commands that should answer at once, over that of `python -c pass` in the same round: the median of
these ratios, with the medians in seconds. Children count too. A build with nothing to do changes no product.
Usage: python benchmarks/bench_startup.py [ENVIRONMENTS]   (in a ./.bench without more of them; makes or reuses
torch2.3-cuda12.1-py311 there)
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from measure import PROVISION, box, environment, seconds

RUNS = 15
ENVIRONMENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 20
BARE = "bare interpreter"
NAME = f"torch2.3-cuda12.1-py3{sys.version_info[1]}"


def make_environments() -> None:
    """Copies of the environment, with the records of its packages, which `env list` reads, instead of
    the packages."""
    prefixes = next(box().glob(f"data/projects/*/prefixes/{NAME}")).parent
    for number in range(1, ENVIRONMENTS):
        name = f"copy{number}"
        if (prefixes / name).exists():
            continue
        shutil.copytree(box() / "envs" / NAME, box() / "envs" / name, dirs_exist_ok=True)
        for record in prefixes.joinpath(NAME).glob("lib/python3*/site-packages/*.dist-info"):
            shutil.copytree(record, prefixes / name / record.relative_to(prefixes / NAME))
        for folder in ("conda-meta", "bin"):
            shutil.copytree(prefixes / NAME / folder, prefixes / name / folder, symlinks=True)
        marker = prefixes / name / "conda-meta" / "provision.state"
        content = json.loads(marker.read_text())
        content |= {"name": name, "folder": str(box() / "envs" / name)}
        marker.unlink()
        marker.write_text(json.dumps(content))


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
    products = ["--no-image", "--no-smoke"]
    build = [PROVISION, "build", *request, *products]
    subprocess.run(build, check=True, env=environment(), cwd=box())
    make_environments()
    before = modified()
    completion = {
        "_PROVISION_COMPLETE": "bash_complete",
        "COMP_WORDS": "provision run t",
        "COMP_CWORD": "2",
    }
    commands: dict[str, tuple[list[str], float | None, dict[str, str]]] = {
        BARE: ([sys.executable, "-c", "pass"], None, {}),
        "provision --help": ([PROVISION, "--help"], None, {}),
        "provision run NAME -- true": ([PROVISION, "run", NAME, "--", "true"], 3, {}),
        "completion of a name": ([PROVISION], 3, completion),
        f"env list of {ENVIRONMENTS}": ([PROVISION, "env", "list"], 8, {}),
        "provision status": ([PROVISION, "status"], 8, {}),
        "provision matrix": ([PROVISION, "matrix"], 8, {}),
        "provision matrix explain": ([PROVISION, "matrix", "explain", *request], None, {}),
        "provision render": ([PROVISION, "render", NAME], None, {}),
        "lock, nothing to do": ([PROVISION, "lock", NAME], 12, {}),
        "build, nothing to do": ([PROVISION, "build", NAME, *products], 12, {}),
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    time.sleep(3)  # a run is recorded when its files are two seconds old
    for _ in range(RUNS):  # interleaved: whatever else the machine does falls on all
        for name, (command, _, variables) in commands.items():
            taken[name].append(seconds(command, {**environment(), **variables}))
    print(f"median of {RUNS}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, (_, target, _) in commands.items():
        wall, cpu = (statistics.median(column) for column in zip(*taken[name]))
        ratio = statistics.median(ours[1] / bare[1] for ours, bare in zip(taken[name], taken[BARE]))
        print(
            f"{name:26} {ratio:5.1f}  {cpu:.3f} s CPU, {wall:.3f} s wall"
            + (f"  (target {target})" if target else "")
        )
    print(f"  writes                   {'nothing' if modified() == before else 'SOMETHING'}")


if __name__ == "__main__":
    main()
