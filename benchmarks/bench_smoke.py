"""How long the smoke test takes, how much of it is ours, and how soon after a deadline it is over.

PROVISION_TEST_PYTHON names an interpreter with torch. Prints a JSON object. Everything runs on this machine, one after the other:

- quick: `--quick` on 2 Gloo ranks, paired with two bare ranks that import torch, start a process group and take one DDP step. The
  ratio is whole / bare; the difference is what is ours.
- many: 16 and 64 ranks (`--ranks` N of this script chooses others).
- ends: seconds from the deadline of a phase to the end of the last process, for each way to be stuck.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import provision_runtime

PYTHON = os.environ.get("PROVISION_TEST_PYTHON", sys.executable)
FOLDER = str(Path(str(provision_runtime.__file__)).parent)
DEADLINE_S = 3
STUCK = ("hang:1:barrier", "stop:1:barrier", "stop:0:barrier", "skip-barrier:1")
BARE = """
import sys, torch
from torch import distributed, nn
rank, file = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
model(torch.ones(8, 64)).sum().backward()
distributed.barrier()
"""


def smoke(out: str, *arguments: str) -> float:
    started = time.perf_counter()
    words = [
        PYTHON,
        "-s",
        FOLDER,
        "smoke",
        "--out",
        out,
        "--quick",
        "--backend",
        "gloo",
        *arguments,
    ]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def bare(folder: str, turn: int) -> float:
    started = time.perf_counter()
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    words = [PYTHON, "-s", "-c", BARE]
    ranks = [
        subprocess.Popen(
            [*words, str(rank), f"{folder}/store{turn}"], env=environment, stderr=subprocess.DEVNULL
        )
        for rank in (0, 1)
    ]
    for rank in ranks:
        rank.wait()
        if rank.returncode:
            raise SystemExit("the bare ranks failed")
    return time.perf_counter() - started


def end_after_deadline(folder: str, fault: str) -> float:
    """From the line that says the phase before is over, less the deadline, to the end of the last process."""
    limit = ("--only", "barrier", "--deadline", f"barrier={DEADLINE_S}")
    words = [
        PYTHON,
        "-s",
        FOLDER,
        "smoke",
        "--out",
        folder,
        "--quick",
        "--backend",
        "gloo",
        "--ranks",
        "2",
        "--inject",
        fault,
        *limit,
    ]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        began = next(time.perf_counter() for line in child.stdout if "rendezvous" in line)
        child.wait()
        return time.perf_counter() - began - DEADLINE_S


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="*", default=[16, 64])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bare(folder, -1)  # the files are then in memory for both
        pairs = [
            (smoke(f"{folder}/quick", "--ranks", "2"), bare(folder, turn))
            for turn in range(chosen.pairs)
        ]
        measured = {
            "quick_s": round(statistics.median(whole for whole, _ in pairs), 2),
            "bare_s": round(statistics.median(base for _, base in pairs), 2),
            "ratio": round(statistics.median(whole / base for whole, base in pairs), 2),
            "ours_s": round(statistics.median(whole - base for whole, base in pairs), 2),
            "many_s": {
                ranks: round(smoke(f"{folder}/many", "--ranks", str(ranks)), 1)
                for ranks in chosen.ranks
            },
            "ends_s": {
                fault: round(end_after_deadline(f"{folder}/ends", fault), 2) for fault in STUCK
            },
        }
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
