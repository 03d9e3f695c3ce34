"""Run as four ranks by an interpreter that has torch (test_checkpoint_resharding): saved by some, read by fewer and more.

Usage: resharding.py FOLDER. Two of the ranks save, then one reads, then all four; in groups made anew in the same processes. Then
four save, and two read. The last line is what came back wrong, as JSON.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed._shard import sharded_tensor

try:
    from torch.distributed import tensor as dtensors
except ImportError:
    dtensors = None
if not hasattr(dtensors, "DTensor"):
    from torch.distributed import _tensor as dtensors

from provision_runtime import checkpoint
from provision_runtime.checkpoint import items, nested

warnings.simplefilter("ignore")
items.pieces.__defaults__ = (200,)
RANK, PROCESSES = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOLDER = Path(sys.argv[1])
STORE = distributed.TCPStore(
    "127.0.0.1", int(os.environ["MASTER_PORT"]), PROCESSES, RANK == 0, timedelta(seconds=100)
)
# Collectives of objects need numpy: those of dcp.load, and those that make a ShardedTensor.
OBJECTS_TRAVEL = importlib.util.find_spec("numpy") is not None
Shard, Replicate = dtensors.Shard, dtensors.Replicate
# Name: shape, how it is cut in one dimension of ranks, or in two.
CUT: dict[str, tuple[tuple[int, ...], list[Any]]] = {
    "rows": ((8, 5), [Shard(0)]),
    "columns": ((5, 8), [Shard(1)]),
    "uneven": ((7, 3), [Shard(0)]),
    "fewer than ranks": ((3, 50), [Shard(0)]),
    "one row": ((1, 9), [Shard(0)]),
    "whole": ((6, 4), [Replicate()]),
    "grid": ((7, 9), [Shard(0), Shard(1)]),
    "turned grid": ((6, 7), [Shard(1), Shard(0)]),
    "hybrid": ((9, 2), [Replicate(), Shard(0)]),
    "twice": ((10, 3), [Shard(0), Shard(0)]),
}


def in_group(world_size: int, number: int, work: Callable[[], Any]) -> Any:
    """On the first ranks, as a default group of their own; the others wait.

    A group ends when all ranks have met in the store: torch destroys it with the GIL held and waits for
    Gloo's threads, and a thread that still drops a Python object wants the GIL (pytorch issue 56297).
    """
    result = None
    if world_size > RANK:
        store = distributed.PrefixStore(f"group{number}", STORE)
        distributed.init_process_group("gloo", store=store, rank=RANK, world_size=world_size)
        result = work()
    if STORE.add(f"done{number}", 1) == PROCESSES:
        STORE.set(f"all done{number}", "")
    STORE.wait([f"all done{number}"])
    if world_size > RANK:
        time.sleep(0.05)  # the GIL is free for Gloo's threads
        distributed.destroy_process_group()
        meshes.cache_clear()
    return result


@functools.cache
def meshes() -> tuple[Any, Any]:
    """Of the group that is up. Each mesh makes groups of its own, so a group shares its meshes."""
    size = distributed.get_world_size()
    side = 2 if size % 2 == 0 else 1
    line = dtensors.DeviceMesh("cpu", list(range(size)))
    return line, dtensors.DeviceMesh("cpu", torch.arange(size).view(side, size // side))


def whole(name: str) -> Any:
    shape = CUT[name][0]
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape) + len(name)


def cut(full: Any, name: str) -> Any:
    line, grid = meshes()
    placements = CUT[name][1]
    return dtensors.distribute_tensor(full, line if len(placements) == 1 else grid, placements)


def bands(fill: bool) -> Any:
    """A ShardedTensor of rows: as many for each rank, and two more for the last."""
    size, rank = distributed.get_world_size(), distributed.get_rank()
    rows = 12 // size
    height = 14 - rows * (size - 1) if rank == size - 1 else rows
    values = torch.arange(14 * 3, dtype=torch.float32).view(14, 3)[
        rows * rank : rows * rank + height
    ]
    local = values.clone() if fill else torch.zeros(height, 3)
    shard = sharded_tensor.Shard.from_tensor_and_offsets(local, [rows * rank, 0], rank)
    return sharded_tensor.init_from_local_shards([shard], 14, 3)


def state(fill: bool, saved_by: int) -> dict[str, Any]:
    """What this rank has, filled or blank. own: by rank of those who saved; a reader may ask for anybody's."""
    rank = distributed.get_rank()
    return {
        "model": {
            name: cut(whole(name) if fill else torch.zeros(CUT[name][0]), name) for name in CUT
        },
        **({"bands": bands(fill)} if OBJECTS_TRAVEL else {}),
        "replicated": torch.arange(300.0) if fill else torch.zeros(300),
        "own": {
            f"of {other}": torch.full((20,), float(other) if fill else -1.0)
            for other in own_shards(rank, saved_by)
        },
        "step": 17 if fill else None,
    }


def own_shards(rank: int, saved_by: int) -> list[int]:
    return [other for other in range(saved_by) if other % distributed.get_world_size() == rank]


def wrong(loaded: dict[str, Any], saved_by: int) -> list[str]:
    expected = state(True, saved_by)
    pairs = [
        (name, actual.to_local(), expected["model"][name].to_local())
        for name, actual in loaded["model"].items()
    ]
    pairs += [("replicated", loaded["replicated"], expected["replicated"])]
    if OBJECTS_TRAVEL:
        shards = zip(loaded["bands"].local_shards(), expected["bands"].local_shards())
        pairs += [("bands", shard.tensor, other.tensor) for shard, other in shards]
    pairs += [(name, actual, expected["own"][name]) for name, actual in loaded["own"].items()]
    differ = [
        name for name, actual, expected_value in pairs if not torch.equal(actual, expected_value)
    ]
    return differ if loaded["step"] == 17 else [*differ, "step"]


def save() -> None:
    size = distributed.get_world_size()
    checkpoint.save(state(True, size), FOLDER / "state", step=size)


def read_ours(saved_by: int) -> list[str]:
    loaded_state = state(False, saved_by)
    report = checkpoint.load(loaded_state, FOLDER / "state", step=saved_by)
    return wrong(loaded_state, saved_by) + ([] if report.step == saved_by else ["report"])


def fsdp(fill: bool) -> tuple[Any, Any]:
    """A sharded model and its optimizer, after a step that all numbers of ranks compute alike."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3 if fill else 4)
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3, bias=False))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=meshes()[0])
    fully_shard(model, mesh=meshes()[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 if fill else 0.5, weight_decay=0.1)
    model(torch.arange(20.0).view(4, 5) / 20).square().sum().backward()
    optimizer.step()
    return model, optimizer


def fsdp_save() -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = fsdp(True)
    states = get_state_dict(model, optimizer)
    checkpoint.save({"model": states[0], "optimizer": states[1]}, FOLDER / "fsdp", step=1)
    everything = {name: value.full_tensor() for name, value in tensors_of(states)}
    if RANK == 0:
        torch.save(everything, FOLDER / "fsdp.pt")


def fsdp_read() -> list[str]:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, optimizer = fsdp(False)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    loaded_state = {"model": model_state, "optimizer": optimizer_state}
    checkpoint.load(loaded_state, FOLDER / "fsdp")
    set_state_dict(
        model,
        optimizer,
        model_state_dict=loaded_state["model"],
        optim_state_dict=loaded_state["optimizer"],
    )
    expected = torch.load(FOLDER / "fsdp.pt", weights_only=True)
    everything = {
        name: value.full_tensor() for name, value in tensors_of(get_state_dict(model, optimizer))
    }
    differ = [name for name, value in expected.items() if not torch.equal(value, everything[name])]
    return (
        differ
        if optimizer.param_groups[0]["lr"] == 0.01 and len(expected) > 12
        else [*differ, "lr"]
    )


def tensors_of(states: Any) -> list[tuple[str, Any]]:
    values = nested.Expansion({"model": states[0], "optimizer": states[1]}).values
    return [(name, value) for name, value in values.items() if isinstance(value, dtensors.DTensor)]


def partial_sums() -> str:
    line, _ = meshes()
    kinds = dtensors.Partial if hasattr(dtensors, "Partial") else dtensors.placement_types._Partial
    summands = dtensors.DTensor.from_local(torch.ones(4), line, [kinds()])
    try:
        checkpoint.save({"sum": summands}, FOLDER / "sums", step=1)
    except checkpoint.CheckpointError as error:
        return str(error)
    return "saved"


def leave() -> None:
    """Rank 0, which hosts the store, goes last."""
    if RANK == 0:
        STORE.wait(["all left"])
    elif STORE.add("left", 1) == PROCESSES - 1:
        STORE.set("all left", "")


def main() -> dict[str, Any]:
    result: dict[str, Any] = {}
    in_group(2, 1, save)
    for number, readers in enumerate((1, 4)):
        result[f"2 to {readers}"] = in_group(readers, 10 + number, lambda: read_ours(2))
    in_group(4, 30, save)
    result["4 to 2"] = in_group(2, 31, lambda: read_ours(4))
    result["partial"] = in_group(2, 33, partial_sums)
    if hasattr(distributed.fsdp, "fully_shard"):
        in_group(2, 40, fsdp_save)
        for number, readers in enumerate((1, 4)):
            result[f"fsdp 2 to {readers}"] = in_group(readers, 41 + number, fsdp_read)
    return result


if __name__ == "__main__":
    import torch.distributed.fsdp

    print("found", json.dumps(main()), flush=True)
    leave()
    os._exit(0)
