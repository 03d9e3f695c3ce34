"""Trains a small model with DDP, on GPUs or CPUs, on one node or many, and goes on where it ended.

On this machine:

    torchrun --nproc-per-node 2 train.py --steps 200

On a cluster, requeued up to three times, with the same checkpoints:

    provision launch NAME --on slurm:gpu --nodes 4 --gpus 8 --time 4h --requeue 3 -- train.py

USR1 comes before the time limit (`--set signal=S`, 120 s before): the ranks agree on a step, save there
and end, and the job is requeued. The next run loads that checkpoint. A run that was interrupted
ends with the same weights as one that was not.
"""

import argparse
import os
import signal

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from provision_runtime import checkpoint

# How often the ranks ask one another whether to stop: each time costs a small all-reduce.
STEPS_BETWEEN_CHECKS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=200, metavar="STEPS")
    parser.add_argument("--checkpoints", default="checkpoints", metavar="DIR")
    options = parser.parse_args()

    # First of all: until a handler is set, USR1 is lost.
    stop = StopRequest()
    device = choose_device()
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = distributed.get_rank()

    torch.manual_seed(0)  # the same weights on every rank
    network = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 1)).to(device)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    first_step = load(model, optimizer, options.checkpoints) + 1
    for step in range(first_step, options.steps + 1):
        inputs, targets = batch(step, rank, device)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        is_stopping = step % STEPS_BETWEEN_CHECKS == 0 and stop.agreed(device)
        if is_stopping or step % options.save_every == 0 or step == options.steps:
            save(model, optimizer, options.checkpoints, step)
            say(rank, f"step {step}: loss {loss.item():.6f}, saved")
        if is_stopping:
            say(rank, "stopped by a signal; the next run goes on here")
            break
    distributed.destroy_process_group()


class StopRequest:
    """Whether USR1 asked this job to save and end."""

    def __init__(self) -> None:
        self._is_requested = False
        signal.signal(signal.SIGUSR1, self._request)

    def _request(self, *_: object) -> None:
        # Once is enough; and a second one must not kill a process that is about to end.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self._is_requested = True

    def agreed(self, device: torch.device) -> bool:
        """Whether any rank was asked; the same answer on all ranks."""
        flag = torch.tensor(int(self._is_requested), device=device)
        distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
        return bool(flag.item())


def choose_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def batch(step: int, rank: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Made up, and the same whenever this step of this rank runs: as a data loader must be that
    goes on after a restart."""
    generator = torch.Generator().manual_seed(step * 100_003 + rank)
    inputs = torch.randn(64, 32, generator=generator)
    return inputs.to(device), inputs.square().sum(dim=1, keepdim=True).to(device)


def save(model: nn.Module, optimizer: torch.optim.Optimizer, root: str, step: int) -> None:
    """On all ranks: the checkpoint is complete, or this raises on all of them."""
    weights, moments = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": moments}, root, step=step)


def load(model: nn.Module, optimizer: torch.optim.Optimizer, root: str) -> int:
    """The step of the latest checkpoint, which is loaded; 0 if there is none."""
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    try:
        report = checkpoint.load(state, root)
    except checkpoint.NoCheckpoint:
        return 0
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    say(distributed.get_rank(), f"loaded step {report.step}")
    return report.step


def say(rank: int, text: str) -> None:
    if rank == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
