"""`provision lock` of an environment of wheels beside `uv pip compile` of the same requirements, both with warm caches:
the median of the ratios of CPU, with the medians in seconds. Both write hashes.

Usage: python benchmarks/bench_wheels.py [REQUEST...]   (without one: --torch 2.3 --cuda 12.1)
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import yaml
from measure import PROVISION, box, environment, forget, seconds

RUNS = 9
NAME = "bench-wheels"
FORGOTTEN = "the same, nothing remembered"


def main() -> None:
    request = sys.argv[1:] or ["--torch", "2.3", "--cuda", "12.1"]
    lock = [PROVISION, "lock", NAME, *request, "--source", "wheels", "--relock"]
    subprocess.run(lock, check=True, env=environment(), cwd=box(), capture_output=True)
    compiled = box() / "bench-wheels.txt"
    commands = {
        "provision lock": [PROVISION, "lock", NAME, "--relock"],
        FORGOTTEN: [PROVISION, "lock", NAME, "--relock"],
        "uv pip compile": compile_command(box() / "envs" / NAME, compiled),
        "bare interpreter": [sys.executable, "-c", "pass"],
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(RUNS):  # interleaved: whatever else the machine does falls on all
        for name, command in commands.items():
            compiled.unlink(missing_ok=True)  # uv would keep its versions
            if name == FORGOTTEN:
                forget()
            taken[name].append(seconds(command, environment()))
    print(f"median of {RUNS}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, runs in taken.items():
        wall, cpu = (statistics.median(column) for column in zip(*runs))
        ratio = statistics.median(
            ours[1] / other[1] for ours, other in zip(taken["provision lock"], runs)
        )
        print(f"{name:28} {cpu:.3f} s CPU, {wall:.3f} s wall   provision lock / this {ratio:5.2f}")


def compile_command(folder: Path, output: Path) -> list[str]:
    """uv's command for the wheels that environment.yml requests."""
    document = yaml.safe_load((folder / "environment.yml").read_text())
    lists = [item["pip"] for item in document["dependencies"] if isinstance(item, dict)]
    requirements = box() / "bench-wheels.in"
    requirements.write_text("".join(f"{text}\n" for text in lists[0]))
    pythons = [item for item in document["dependencies"] if str(item).startswith("python=")]
    uv = str(Path(sys.executable).parent / "uv")
    command = [uv, "pip", "compile", "--quiet", "--generate-hashes", str(requirements)]
    command += ["--python", sys.executable, "--python-version", pythons[0].partition("=")[2]]
    return [*command, "--python-platform", "x86_64-manylinux_2_28", "-o", str(output)]


if __name__ == "__main__":
    main()
