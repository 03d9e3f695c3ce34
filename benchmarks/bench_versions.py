"""CPU seconds of the host's commands in this checkout and in another one, in turns.

Usage: python benchmarks/bench_versions.py OTHER_CHECKOUT [PAIRS]   (makes or reuses a lock for each in ./.bench)
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

from measure import box

NAME = f"torch2.3-cuda12.1-py3{sys.version_info[1]}"
REQUEST = ["--torch", "2.3", "--cuda", "12.1"]
COMMANDS = [
    ["--help"],
    ["matrix"],
    ["matrix", "explain", *REQUEST],
    ["render", "--dry-run", NAME],
    ["lock", "verify", "--offline", NAME],
    ["lock", "verify", NAME],
    ["build", "--dry-run", *REQUEST],
    ["env", "list"],
]
# `main` moved once.
SCRIPT = """
import sys
sys.argv[0] = "provision"
try:
    from provision.cli.main import main
except ImportError:
    from provision.cli import main
main()
"""


def cpu_seconds(checkout: Path, folder: Path, command: list[str]) -> float:
    """Of one command and of the processes that it starts."""
    folders = {
        "PYTHONPATH": checkout,
        "PROVISION_DATA": folder / "data",
        "PROVISION_CACHE": folder / "cache",
        "JUPYTER_DATA_DIR": folder / "jupyter",
    }
    environment = {**os.environ, **{key: str(value) for key, value in folders.items()}}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *command],
        env=environment,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, (checkout, command)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    here = Path(__file__).parents[1]
    checkouts = {"before": Path(sys.argv[1]).absolute(), "after": here}
    pairs = int(sys.argv[2]) if len(sys.argv) > 2 else 21
    folders = {side: box() / "versions" / side for side in checkouts}
    for side, checkout in checkouts.items():
        folders[side].mkdir(parents=True, exist_ok=True)
        cpu_seconds(checkout, folders[side], ["lock", *REQUEST])
    for command in COMMANDS:
        taken: dict[str, list[float]] = {side: [] for side in checkouts}
        for number in range(pairs + 1):
            for side in sorted(checkouts, reverse=bool(number % 2)):
                seconds = cpu_seconds(checkouts[side], folders[side], command)
                if number > 0:  # the first pair compiles modules and warms the disk
                    taken[side].append(seconds)
        before, after = (statistics.median(taken[side]) for side in ("before", "after"))
        print(
            f"{' '.join(command):40} {before:.3f} s  {after:.3f} s  {after / before:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
