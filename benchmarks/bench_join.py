"""From a lab's address to a first passed job: commands, questions, and the time against the stages by hand.

Usage: python benchmarks/bench_join.py ENVS NAME [ROUNDS]
ENVS/NAME is an environment with a lock that installs here; its wheels are in uv's cache after the first round. Each
round starts twice from an empty home: with `provision join`, and with the commands that join stands for.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from measure import PROVISION, box

LAB = """\
schema: 1
name: bench
contact: nobody
paths: {{data: "{place}/scratch/data", cache: "{place}/scratch/cache"}}
environments:
  {name}:
"""


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=bench", "-c", "user.email=bench@lab.example"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def write_lab(folder: Path, environment: Path, place: Path) -> str:
    (folder / "envs").mkdir(parents=True)
    shutil.copytree(environment, folder / "envs" / environment.name)
    (folder / "lab.yml").write_text(LAB.format(place=place, name=environment.name))
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "lab")
    return folder.as_uri()


class Member:
    """An empty home. uv's cache is shared by all rounds, and warm after the first."""

    def __init__(self, place: Path) -> None:
        self.place = place
        shutil.rmtree(place / "home", ignore_errors=True)
        shutil.rmtree(place / "scratch", ignore_errors=True)
        (place / "home").mkdir(parents=True)
        own = {key: value for key, value in os.environ.items() if not key.startswith("PROVISION_")}
        own.pop("PYTHONDONTWRITEBYTECODE", None)
        self.env = {**own, "HOME": str(place / "home"), "UV_CACHE_DIR": str(box() / "uv")}

    def run(self, *commands: Sequence[str], **variables: str) -> tuple[float, float]:
        """Wall and CPU seconds of the commands, none of which may read from a terminal."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        for command in commands:
            subprocess.run(
                command,
                cwd=self.place,
                env={**self.env, **variables},
                stdin=subprocess.DEVNULL,
                check=True,
                capture_output=True,
            )
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def by_hand(place: Path, url: str, name: str) -> tuple[float, float]:
    member = Member(place)
    data = {
        "PROVISION_DATA": f"{place}/scratch/data",
        "PROVISION_CACHE": f"{place}/scratch/cache",
        "PROVISION_ENVS": f"{place}/home/lab/envs",
    }
    return member.run(
        ["git", "clone", "-q", "--depth", "1", url, f"{place}/home/lab"],
        [PROVISION, "env", "create", name],
        [PROVISION, "kernel", "add", name],
        [PROVISION, "smoke", name, "--quick"],
        **data,
    )


def main() -> None:
    envs, name = Path(sys.argv[1]), sys.argv[2]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    place = box() / "join"
    shutil.rmtree(place, ignore_errors=True)
    url = write_lab(place / "lab", envs / name, place)
    by_hand(place, url, name)  # fills uv's cache
    joins, hands, seconds = [], [], []
    for _ in range(rounds):
        hands.append(by_hand(place, url, name))
        member = Member(place)
        joins.append(member.run([PROVISION, "join", url]))
        seconds.append(member.run([PROVISION, "join"]))
    for label, column in (("wall", 0), ("CPU", 1)):
        join_s = statistics.median(row[column] for row in joins)
        hand_s = statistics.median(row[column] for row in hands)
        again_s = statistics.median(row[column] for row in seconds)
        ratios = sorted(one[column] / other[column] for one, other in zip(joins, hands))
        print(
            f"{label}: join {join_s:.1f} s, stages by hand {hand_s:.1f} s, "
            f"ratio {statistics.median(ratios):.2f} [{ratios[0]:.2f} {ratios[-1]:.2f}]; "
            f"second join {again_s:.2f} s"
        )
    print("commands from the address to the first passed job: 1; questions: 0 (no terminal)")
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
