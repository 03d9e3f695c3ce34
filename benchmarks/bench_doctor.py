"""Seconds of `provision doctor`: on this machine, on a captured one with 8 GPUs, and where nvidia-smi hangs.

Usage: python benchmarks/bench_doctor.py
"""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

from measure import PROVISION, box, seconds

ROOT = Path(__file__).resolve().parent.parent
CAPTURE = ROOT / "tests" / "captures" / "healthy-8gpu"
RUNS = 5
TARGET_S = 3.0


def timed(command: list[str], **variables: str) -> tuple[float, float]:
    """Wall and CPU seconds of a command, which may find something."""
    env = {**os.environ, **variables}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return seconds(command, env, check=False)


def hanging_tool() -> str:
    """PATH with an nvidia-smi that never answers."""
    folder = box() / "hanging"
    folder.mkdir(exist_ok=True)
    tool = folder / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexec sleep 1000\n")
    tool.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def main() -> None:
    captured = [sys.executable, "-S", str(ROOT / "provision_runtime"), "doctor"]
    captured += ["--root", str(CAPTURE), "--prefix", "/opt/env"]
    path = hanging_tool()
    rows: list[tuple[str, list[str], float | None, dict[str, str]]] = [
        ("doctor", [PROVISION, "doctor"], TARGET_S, {}),
        ("a captured machine with 8 GPUs", captured, TARGET_S, {}),
        ("doctor, nvidia-smi hangs", [PROVISION, "doctor"], None, {"PATH": path}),
    ]
    for label, command, target, variables in rows:
        timed(command, **variables)  # once to warm up
        runs = [timed(command, **variables) for _ in range(RUNS)]
        wall, cpu = (statistics.median(column) for column in zip(*runs))
        goal = f"  (target {target:g} s)" if target else ""
        print(f"{label}: {wall:.2f} s, CPU {cpu:.2f} s{goal}")


if __name__ == "__main__":
    main()
