"""Run as two ranks by an interpreter that has torch (test_checkpoint_ranks): they meet in collectives, and one dies in a save, or
before a load.

Usage: groups.py FOLDER save|load. The last line is what each was told, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

from provision_runtime import checkpoint
from provision_runtime.comm import ranks

RANK = int(os.environ["RANK"])
TIMEOUT = timedelta(seconds=8)


def leave() -> None:
    if RANK == 1:
        print("found", json.dumps(["left"]), flush=True)
        os._exit(9)


def main(root: Path, what: str) -> list[object]:
    us = ranks.through_group()
    state = {"weight": torch.ones(10)}
    checkpoint.save(state, root, step=1, ranks=us)
    try:
        if what == "save":
            checkpoint.save(state, root, step=2, ranks=us, progress=lambda _: leave())
        else:
            leave()
            checkpoint.load(state, root, ranks=us)
    except checkpoint.NotCommitted as error:
        return [
            "NotCommitted",
            list(error.ranks),
            str(error).partition(": a collective failed at ")[0],
        ]
    except checkpoint.CheckpointError as error:
        return [
            "CheckpointError",
            [],
            str(error).partition(": a collective failed at ")[0].replace(str(root), "ROOT"),
        ]
    return ["nothing"]


if __name__ == "__main__":
    distributed.init_process_group("gloo", rank=RANK, world_size=2, timeout=TIMEOUT)
    print("found", json.dumps(main(Path(sys.argv[1]), sys.argv[2])), flush=True)
    os._exit(0)
