"""Packing torch 2.3 + CUDA 12.1: CPU time against plain mksquashfs of the prefix, which has byte code too; `import torch` from the mounted pack
against a prefix without byte code; and verifying a pack against sha256sum.

Usage: python benchmarks/bench_pack.py [--pairs N] [--envs DIR]   (mounting needs root)
All figures are CPU seconds (user and system) of children, which noise on the machine hardly changes. The
sides take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from measure import PROVISION, box, environment

ROOT = Path(__file__).resolve().parent.parent
NAME = "torch2.3-cuda12.1-py311"
CLEAN = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
VERIFY = (
    "import sys\nfrom provision_runtime.node import transfer\n"
    "assert transfer.file_sha256(sys.argv[1]) == sys.argv[2]"
)


def cpu_s(command: list[str], env: dict[str, str] | None = None) -> float:
    """User and system time of a command and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env, cwd=box())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(
    title: str, ours: Callable[[], float], other: Callable[[], float], pairs: int, target: str
) -> None:
    rows = []
    for index in range(pairs):
        if index % 2:
            mine = ours()
            rows.append((mine, other()))
        else:
            theirs = other()
            rows.append((ours(), theirs))
    mine, theirs = (statistics.median(column) for column in zip(*rows))
    print(
        f"{title}: {mine:.2f} s and {theirs:.2f} s CPU (medians of {pairs}), ratio {mine / theirs:.2f} {target}"
    )


def pack(env: dict[str, str], *options: str) -> tuple[float, dict[str, object]]:
    shutil.rmtree(box() / "data" / "packs", ignore_errors=True)
    used_s = cpu_s([PROVISION, "pack", NAME, *options], env)
    shown = subprocess.run(
        [PROVISION, "pack", NAME, "--json", *options],
        check=True, capture_output=True, text=True, env=env, cwd=box(),
    )  # fmt: skip
    return used_s, json.loads(shown.stdout)


def plain_mksquashfs(tree: Path, *options: str) -> float:
    target = box() / "plain.sqsh"
    command = ["mksquashfs", str(tree), str(target), "-noappend", "-quiet", "-no-progress"]
    used_s = cpu_s([*command, *options])
    target.unlink()
    return used_s


def import_torch(prefix: Path) -> float:
    return cpu_s([str(prefix / "bin" / "python"), "-s", "-c", "import torch"], CLEAN)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--pairs", type=int, default=5)
    options.add_argument("--envs", default=str(box() / "envs"), help="has the locked environment")
    chosen = options.parse_args()
    env = {**environment(), "PROVISION_ENVS": chosen.envs}
    if not Path(chosen.envs, NAME, "conda-lock.yml").exists():
        request = ["--torch", "2.3", "--cuda", "12.1"]
        subprocess.run([PROVISION, "lock", *request], check=True, env=env, cwd=box())
    subprocess.run([PROVISION, "env", "create", NAME], check=True, env=env, cwd=box())
    (prefix,) = box().glob(f"data/projects/*/prefixes/{NAME}")
    for fast in ((), ("--compression", "lz4")):
        used_s, _ = pack(env, *fast)
        compression = ["lz4"] if fast else ["zstd", "-Xcompression-level", "3"]
        plain_s = plain_mksquashfs(prefix, "-comp", *compression, "-b", "256K")
        print(
            f"pack {' '.join(fast)}: {used_s:.1f} s CPU, mksquashfs of the prefix alone {plain_s:.1f} s, "
            f"ratio {used_s / plain_s:.2f}"
        )
    _, made = pack(env)
    image = str(made["image"])
    python = [sys.executable, "-S", "-c", VERIFY, image, str(made["sha256"])]
    runtime = {**os.environ, "PYTHONPATH": str(ROOT)}
    compare(
        "verify a pack, sha256sum",
        lambda: cpu_s(python, runtime),
        lambda: cpu_s(["sha256sum", image]),
        chosen.pairs,
        "(target <= 1.3)",
    )
    if os.geteuid() == 0:
        for folder in list(prefix.rglob("__pycache__")):
            shutil.rmtree(folder)
        compare_imports(Path(image), prefix, chosen.pairs)


def compare_imports(image: Path, prefix: Path, pairs: int) -> None:
    place = box() / "mounted"
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop,ro", str(image), str(place)], check=True)
    try:
        print(f"import torch, first after mounting: {import_torch(place):.2f} s CPU")
        compare(
            "import torch from the mounted pack, from a prefix without byte code",
            lambda: import_torch(place),
            lambda: import_torch(prefix),
            pairs,
            "(target <= 0.6)",
        )
    finally:
        subprocess.run(["umount", str(place)], check=True)


if __name__ == "__main__":
    main()
