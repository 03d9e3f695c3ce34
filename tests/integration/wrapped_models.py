"""Run as two ranks by an interpreter that has torch (test_checkpoint_wrapped): wrapped and sharded models, as objects.

Usage: wrapped_models.py FOLDER. Every case is a function; the last line is what each found, as JSON. None: this torch cannot do it
on CPUs.
"""

from __future__ import annotations

import json
import os
import random
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from provision_runtime import checkpoint
from provision_runtime.comm import ranks

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOLDER = Path(sys.argv[1])
Wrap = Callable[[nn.Module], nn.Module]


def made(seed: int, wrap: Wrap) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    # A layer of the model that has a wrapper's name.
    layers = nn.ModuleDict({"first": nn.Linear(6, 5), "module": nn.Linear(5, 3)})
    model = wrap(Layers(layers))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


class Layers(nn.Module):  # type: ignore[misc, unused-ignore]
    def __init__(self, layers: nn.ModuleDict) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            value = layer(value)
        return value


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(step)
        model(torch.randn(4, 6, generator=generator)).square().sum().backward()
        optimizer.step()


def numbers(model: nn.Module) -> list[Any]:
    """This rank's part of the parameters."""
    parts = []
    for parameter in model.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        parts.append(local.detach().flatten().tolist())
    return parts


def resumed(name: str, wrap: Wrap) -> list[Any]:
    """Whether a fresh model and optimizer go on as the saved ones, on as many ranks and by name in one process."""
    root = FOLDER / name
    model, optimizer = made(1, wrap)
    trained(model, optimizer, 2)
    checkpoint.save({"model": model, "optim": optimizer}, root, step=2)
    fresh, fresh_optimizer = made(2, wrap)
    checkpoint.load({"model": fresh, "optim": fresh_optimizer}, root)
    at_load = numbers(fresh) == numbers(model)
    trained(model, optimizer, 2)
    trained(fresh, fresh_optimizer, 2)
    plain, _ = made(3, lambda inner: inner)
    checkpoint.load({"model": plain}, root, ranks=ranks.single_process())
    whole, whole_optimizer = made(1, lambda inner: inner)
    trained(whole, whole_optimizer, 2)
    close = all(map(torch.allclose, plain.parameters(), whole.parameters()))
    return [at_load, numbers(fresh) == numbers(model), close, sorted(checkpoint.contents(root))[:4]]


def ddp() -> Any:
    return resumed("ddp", DistributedDataParallel)


def compiled() -> Any:
    """Compiled in the middle and outside, with a wrapper for activations."""
    if not hasattr(torch, "compile"):
        return None
    from torch import _dynamo
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    _dynamo.config.optimize_ddp = False  # 2.3 cannot cut a graph with checkpoint_wrapper in it

    def wrap(model: Any) -> Any:
        model.layers["first"] = torch.compile(
            checkpoint_wrapper(model.layers["first"]), backend="eager"
        )
        return DistributedDataParallel(torch.compile(model, backend="eager"))

    return resumed("compiled", wrap)


def fsdp2() -> Any:
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        return None
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (WORLD_SIZE,))

    def wrap(model: Any) -> Any:
        for layer in model.layers.values():
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    return resumed("fsdp2", wrap)


def fsdp1(use_orig_params: bool) -> Any:
    """Its optimizer has parts under the names of wholes."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    try:
        inner, _ = made(1, lambda model: model)
        model = FullyShardedDataParallel(
            inner, device_id=torch.device("cpu"), use_orig_params=use_orig_params
        )
    except (RuntimeError, AttributeError):
        return None
    optimizer = torch.optim.AdamW(model.parameters())
    try:
        checkpoint.save({"model": model, "optim": optimizer}, FOLDER / "fsdp1", step=1)
    except checkpoint.CheckpointError as error:
        return str(error)
    return "nothing"


class Source:
    """A data loader's state has another form at each moment."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        if self.state is None:
            raise RuntimeError("a load asks for no state")
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def by_rank() -> Any:
    """Random generators and a data loader, different on each rank."""

    def draw() -> list[float]:
        return [random.random(), float(torch.rand(1)), float(torch.randn(1))]

    random.seed(RANK)
    torch.manual_seed(RANK)
    source = Source({"position": (RANK, [torch.arange(RANK + 1)]), 3: None})
    root = FOLDER / "by_rank"
    checkpoint.save({"rng": checkpoint.Rng(), "data": checkpoint.PerRank(source)}, root, step=1)
    drawn = [draw()]
    fresh = checkpoint.PerRank(Source(None))
    checkpoint.load({"rng": checkpoint.Rng(), "data": fresh}, root)
    drawn.append(draw())
    state = {"rng": checkpoint.rng_state()}
    checkpoint.load(state, root)
    checkpoint.restore_rng(state["rng"])
    drawn.append(draw())
    rank, [order] = fresh.source.state["position"]
    refusals = []
    for action in (
        lambda: checkpoint.restore_rng({"7": {}}),
        lambda: checkpoint.save(
            {"d": checkpoint.PerRank(Source({"a": Fraction(1)}))}, root, step=2
        ),
    ):
        try:
            action()
        except checkpoint.CheckpointError as error:
            refusals.append(str(error))
    return [drawn, rank, order.tolist(), refusals]


def prefixes() -> Any:
    """State dicts by hand: what differs only by a wrapper's prefix is named."""
    root = FOLDER / "prefixes"
    model, _ = made(1, DistributedDataParallel)
    checkpoint.save({"model": model.state_dict(), "again": model}, root, step=1)
    plain, _ = made(2, lambda inner: inner)
    refusals = []
    for state in ({"model": plain}, {"again": model.state_dict()}):
        try:
            checkpoint.load(state, root)
        except checkpoint.CheckpointError as error:
            refusals.append(str(error))
    # As the first refusal says.
    checkpoint.load({"model": {"module": plain}}, root)
    return [*refusals, numbers(plain) == numbers(model)]


def main() -> None:
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo", timeout=timedelta(seconds=100))
    cases = (ddp, compiled, fsdp2, prefixes, by_rank)
    outcome = {case.__name__: case() for case in cases}
    for use_orig_params in (True, False):
        outcome[f"fsdp1 {use_orig_params}"] = fsdp1(use_orig_params)
    distributed.barrier()
    print("found", json.dumps(outcome))


main()
