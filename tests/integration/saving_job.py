"""A job of two ranks that saves steps 100, 200, 300 and 300 again, and then stays in the middle of saving step 400."""

from __future__ import annotations

import os
import signal
import sys

import torch

from provision_runtime import checkpoint

RANK = int(sys.argv[2])


def state(step: int) -> dict[str, object]:
    torch.manual_seed(0)
    frozen = {"weight": torch.randn(600, 1000), "bias": torch.randn(600), "steps": torch.tensor(7)}
    own = {f"moment{RANK}": torch.full((300, 1000), step + RANK / 2, dtype=torch.float64)}
    return {"model": frozen, "optim": own, "step": step}


def stay(doing: checkpoint.SaveProgress) -> None:
    if doing.written == doing.total:
        print("saving", flush=True)
        signal.pause()


def main() -> None:
    # Two ranks of one save are two processes here; the group exists for its store.
    where = f"file://{sys.argv[1]}.store"
    torch.distributed.init_process_group("gloo", init_method=where, rank=RANK, world_size=2)
    for step in (100, 200, 300, 300):
        checkpoint.save(state(step), sys.argv[1], step=step)
    print("saved", os.getpid(), flush=True)
    sys.stdin.readline()
    checkpoint.save(state(400), sys.argv[1], step=400, progress=stay)


main()
