"""CPU time of `import torch` from a prefix that nobody may write to, by the kind of byte code.

    python benchmarks/bench_import.py PREFIX [ROUNDS]

Makes four copies of PREFIX with hard links next to it (the same file system) and removes them.
"""

from __future__ import annotations

import resource
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args

from provision.environment import bytecode

Kind = Literal["none", "checked-hash", "unchecked-hash", "timestamp"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def cpu_s(python: Path) -> float:
    """Seconds of CPU time, user and system, of one import."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [python, "-s", "-B", "-c", "import torch"]
    subprocess.run(command, check=True, env={"PATH": "/usr/bin:/bin"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def copy(prefix: Path, target: Path, kind: Kind) -> Path:
    subprocess.run(["cp", "-al", prefix, target], check=True)
    if kind == "checked-hash" or kind == "unchecked-hash":
        bytecode.compile_all(target, kind)
        return target
    for folder in target.rglob(bytecode.FOLDER):
        shutil.rmtree(folder)
    if kind == "timestamp":
        python = target / "bin" / "python"
        subprocess.run([python, "-s", "-m", "compileall", "-qq", target / "lib"])
    return target


def main() -> None:
    prefix = Path(sys.argv[1]).absolute()
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    copies = {kind: prefix.with_name(f"{prefix.name}.{kind}") for kind in KINDS}
    try:
        for kind, target in copies.items():
            copy(prefix, target, kind)
            cpu_s(target / "bin" / "python")  # into the page cache
        seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for _ in range(rounds):
            for kind, target in copies.items():
                seconds[kind].append(cpu_s(target / "bin" / "python"))
    finally:
        for target in copies.values():
            shutil.rmtree(target, ignore_errors=True)
    without = statistics.median(seconds["none"])
    for kind in KINDS:
        median = statistics.median(seconds[kind])
        spread = f"{min(seconds[kind]):.2f} to {max(seconds[kind]):.2f}"
        print(f"{kind:15} {median:.2f} s of CPU ({spread}), {median / without:.2f} x of none")


if __name__ == "__main__":
    main()
