"""Run as two ranks by an interpreter that has torch (test_checkpoint_training): what a training loop
does with checkpoints.

Usage: training_checkpoints.py FOLDER. Every case is a function; the last line is what each found.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from provision_runtime import checkpoint
from provision_runtime.comm import ranks

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOLDER = Path(sys.argv[1])
STORE = distributed.TCPStore(
    "127.0.0.1", int(os.environ["MASTER_PORT"]), WORLD_SIZE, RANK == 0, timedelta(seconds=100)
)
US = ranks.through_store(STORE, RANK, WORLD_SIZE, 60)
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, amsgrad=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
}


def made(kind: str, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    return model, OPTIMIZERS[kind](model.parameters())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> float:
    generator = torch.Generator().manual_seed(7)
    loss = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
    return float(loss)


def two_lines() -> dict[str, Any]:
    """The loss of the next steps is the same after a load into fresh objects as without it."""
    outcome = {}
    for kind in OPTIMIZERS:
        model, optimizer = made(kind, 1)
        train(model, optimizer, 3)
        root = FOLDER / kind
        checkpoint.save({"model": model, "optim": optimizer}, root, step=3, ranks=US)
        fresh, fresh_optimizer = made(kind, 2)
        checkpoint.load({"model": fresh, "optim": fresh_optimizer}, root, ranks=US)
        outcome[kind] = train(fresh, fresh_optimizer, 2) == train(model, optimizer, 2)
    return outcome


def loose() -> list[Any]:
    model, optimizer = made("adamw", 1)
    train(model, optimizer, 1)
    root = FOLDER / "loose"
    checkpoint.save({"model": model}, root, step=1, ranks=US)
    bigger = nn.ModuleDict({"0": nn.Linear(4, 3), "head": nn.Linear(3, 2)})
    head = bigger["head"].weight.detach().clone()
    state = {"model": bigger, "epoch": 7}
    try:
        checkpoint.load(state, root, ranks=US)
    except checkpoint.CheckpointError as error:
        refusal = str(error)
    report = checkpoint.load(state, root, ranks=US, strict=False)
    same = torch.equal(bigger["0"].weight, model[0].weight)
    kept = torch.equal(bigger["head"].weight, head) and state["epoch"] == 7
    return [refusal, sorted(report.missing), same, kept]


def descriptions() -> list[Any]:
    root = FOLDER / "described"
    metadata = {"epoch": 2, "loss": 0.5, "config": {"width": [1, 2]}, "rank": 0}
    metadata["rank"] = RANK  # that of rank 0 counts
    state = {"a": torch.zeros(2, 3), "n": 5}
    checkpoint.save(state, root, step=1, ranks=US, metadata=metadata)
    checkpoint.save(state, root, step=2, ranks=US)
    problems = []
    wrongs: list[Any] = [{"x": torch.zeros(1)}, {"x": (1, 2)}, {1: 2}]
    for wrong in wrongs:
        try:
            checkpoint.save(state, root, step=3, ranks=US, metadata=wrong if RANK == 1 else {})
        except (ValueError, checkpoint.CheckpointError) as error:
            problems.append(type(error).__name__)
    described = {
        name: [kind, list(shape)] for name, (kind, shape) in checkpoint.contents(root).items()
    }
    return [
        checkpoint.metadata(root, step=1),
        checkpoint.metadata(root),
        described,
        problems,
        checkpoint.list_steps(root),
    ]


def warned() -> list[list[str]]:
    """What a save warns of, and whether load then refuses it."""
    outcome = []
    states: list[dict[str, Any]] = [
        {"plain": {"a": [1, 2.5, "x", None, True]}, "b": (1, 2), "t": [{"x": torch.zeros(1)}]},
        {"exotic": Fraction(1, 3)},
    ]
    for number, state in enumerate(states):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            checkpoint.save(state, FOLDER / "warned", step=number, ranks=US)
        texts = [str(warning.message) for warning in caught]
        try:
            checkpoint.load(dict(state), FOLDER / "warned", step=number, ranks=US)
            refused = ""
        except checkpoint.CheckpointError as error:
            refused = str(error)
        outcome.append([*texts, refused])
    return outcome


def managed() -> list[Any]:
    root = FOLDER / "managed"
    losses = {2: 0.9, 4: 0.1, 6: 0.5, 8: 0.4, 10: 0.3}
    model, optimizer = made("adamw", 1)
    state = {"model": model, "optim": optimizer}
    with checkpoint.CheckpointManager(
        root, state, every=2, keep=2, best="loss", on_signal=False, ranks=US
    ) as manager:
        first = manager.restore()
        for step in range(1, 11):
            train(model, optimizer, 1)
            manager.after_step(step, loss=losses.get(step, 0.0))
        best = manager.best_step()
    fresh, fresh_optimizer = made("adamw", 2)
    with checkpoint.CheckpointManager(
        root,
        {"model": fresh, "optim": fresh_optimizer},
        every=1,
        background=True,
        agree_every=1,
        ranks=US,
    ) as manager:
        again = manager.restore()
        same = train(fresh, fresh_optimizer, 1) == train(model, optimizer, 1)
        steps = checkpoint.list_steps(root)
        for step in (11, 12, 13, 14):
            manager.after_step(step)
    US.exchange("managed/pruned", None)  # rank 0 prunes; the other does not wait for it
    return [first, best, again, same, steps, checkpoint.list_steps(root)]


def signalled() -> list[Any]:
    root = FOLDER / "signalled"
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    state = {"a": torch.zeros(3)}
    stops = []
    with checkpoint.CheckpointManager(root, state, every=100, agree_every=2, ranks=US) as manager:
        for step in range(1, 20):
            if step == 3 and RANK == 1:
                signal.raise_signal(signal.SIGUSR1)
            if step == 7 and RANK == 0:
                signal.raise_signal(signal.SIGTERM)
            stops.append(manager.after_step(step))
            if stops[-1]:
                break
    restored = handlers == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    return [len(stops), stops[-1], checkpoint.list_steps(root), restored]


def signalled_in_the_background() -> list[Any]:
    """With the ranks of the default group: they agree on signals while a save exchanges values."""
    distributed.init_process_group("gloo", store=STORE, rank=RANK, world_size=WORLD_SIZE)
    root = FOLDER / "signalled_in_the_background"
    state = {"a": torch.zeros(1_000_000)}
    with checkpoint.CheckpointManager(
        root, state, every=2, keep=2, background=True, agree_every=1, deadline_s=20
    ) as manager:
        for step in range(1, 20):
            state["a"] += 1
            if step == 7 and RANK == 1:
                signal.raise_signal(signal.SIGTERM)
            if manager.after_step(step):
                break
    distributed.destroy_process_group()
    US.exchange("signalled/pruned", None)  # rank 0 prunes; the other does not wait for it
    return [step, checkpoint.list_steps(root)]


def migrated() -> list[Any]:
    """On one rank: torch's own checkpoints."""
    if RANK != 0:
        return []
    alone = ranks.single_process()
    model, optimizer = made("adamw", 1)
    train(model, optimizer, 2)
    file, folder = FOLDER / "old.pt", FOLDER / "old_dcp"
    torch.save({"model": model.state_dict(), "optim": optimizer.state_dict(), "step": 2}, file)
    root = FOLDER / "migrated"
    checkpoint.save(checkpoint.read_plain(file), root, step=2, ranks=alone)
    fresh, fresh_optimizer = made("adamw", 2)
    checkpoint.load({"model": fresh, "optim": fresh_optimizer}, root, ranks=alone)
    same = train(fresh, fresh_optimizer, 1) == train(model, optimizer, 1)
    torch.save({"x": Fraction(1, 2)}, FOLDER / "exotic.pt")
    (FOLDER / "broken.pt").write_bytes(b"no")
    refusals = []
    for path in (FOLDER / "exotic.pt", FOLDER / "broken.pt", root / "step-000000000002", FOLDER):
        try:
            checkpoint.read_plain(path)
        except checkpoint.CheckpointError as error:
            refusals.append(str(error).partition(": ")[2] or str(error))
    trusted = str(checkpoint.read_plain(FOLDER / "exotic.pt", allow_pickle=True)["x"])
    dcp_same = None
    try:
        from torch.distributed.checkpoint import FileSystemWriter, save_state_dict
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: F401
    except ImportError:
        return [same, refusals, trusted, dcp_same]
    folder.mkdir()
    state = {"model": model.state_dict(), "step": torch.tensor(3)}
    save_state_dict(state, FileSystemWriter(str(folder)), no_dist=True)
    read = checkpoint.read_plain(folder, allow_pickle=True)
    dcp_same = int(read["step"]) == 3 and all(
        torch.equal(value, read["model"][name]) for name, value in model.state_dict().items()
    )
    try:
        checkpoint.read_plain(folder)
    except checkpoint.CheckpointError as error:
        refusals.append(str(error).partition(" ")[2])
    return [same, refusals, trusted, dcp_same, sorted(path.name for path in FOLDER.glob(".plain*"))]


CASES = (
    two_lines,
    loose,
    descriptions,
    warned,
    managed,
    signalled,
    signalled_in_the_background,
    migrated,
)


def main() -> None:
    outcome = {case.__name__: case() for case in CASES}
    US.exchange("done", None)
    print("found", json.dumps(outcome))


if __name__ == "__main__":
    main()
