"""What training code uses of the runtime package, with real ranks, stores, groups and models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.scripts import run_ranks

pytestmark = pytest.mark.torch

BEGINNING = """
import json, os, sys
from datetime import timedelta
from pathlib import Path
import torch
from torch import nn
from provision_runtime import checkpoint, fs
from provision_runtime.comm import collective, ranks
from provision_runtime.facts import ddp_check
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder, results = Path(os.environ["FOLDER"]), {}
"""
# Without the destructors of torch 2.3, which were seen to wait for ever in a group whose other rank has left.
END = """
print("found", json.dumps(results), flush=True)
os._exit(0)
"""


def by_rank(script: str, folder: Path, world_size: int = 2) -> list[dict[str, Any]]:
    """The results of each rank."""
    program = folder / "program.py"
    program.write_text(BEGINNING + script + END)
    return run_ranks(program, world_size=world_size, variables={"FOLDER": str(folder)})


@pytest.mark.exhaustive
def test_ranks_exchange_through_a_store_and_a_group(tmp_path: Path) -> None:
    results = by_rank(
        """
store = torch.distributed.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), world_size, rank == 0, timedelta(seconds=60))
job = ranks.through_store(store, rank, world_size, timeout_s=60)
fs.make_directory(folder / "shared", job)
results["exists"] = fs.exists(folder / ("" if rank == 0 else "nowhere") / "shared", job)
try:
    collective.broadcast("fail", job, lambda: (folder / "no such").stat())
except collective.RankFailed as error:
    results["failed"] = [error.errno, list(error.ranks)]
model = nn.Sequential(nn.Linear(4, 8 + rank), nn.Linear(8 + rank, 2))
try:
    ddp_check.require_same_parameters(model, job.exchange)
except ddp_check.ParametersDiffer as error:
    results["differ"] = str(error)
checkpoint.save({f"rank{rank}": torch.full((3,), float(rank))}, folder / "shared", step=7, ranks=job)
other = {f"rank{1 - rank}": torch.zeros(3)}
checkpoint.load(other, folder / "shared", ranks=job)
results["loaded"] = other[f"rank{1 - rank}"].tolist() == [1.0 - rank] * 3

torch.distributed.init_process_group("gloo", store=torch.distributed.PrefixStore("group", store), rank=rank, world_size=world_size)
group = ranks.of_default_group()
results["gathered"] = group.exchange("hello", {"rank": rank, "long": "x" * (10 + 1000 * rank)})
torch.manual_seed(rank)
same_shape = nn.Linear(4, 4)
results["digest"] = ddp_check.require_same_parameters(same_shape, group.exchange)
# Rank 0 hosts the store, so it leaves last.
if rank == 0:
    fs.wait_until_visible(folder / "left", 60)
else:
    (folder / "left").touch()
""",
        tmp_path,
    )
    assert results[0] == results[1]
    assert results[0]["exists"] is True
    assert results[0]["failed"] == [2, [0]]
    assert (
        results[0]["differ"]
        == "ranks 0, 1: on rank 1, parameter 0.weight is [9, 4] float32, not [8, 4] float32 as on rank 0"
    )
    assert results[0]["loaded"]
    assert [payload["rank"] for payload in results[0]["gathered"]] == [0, 1]
    assert [len(payload["long"]) for payload in results[0]["gathered"]] == [10, 1010]


@pytest.mark.exhaustive
def test_digests_of_real_models(tmp_path: Path) -> None:
    [results] = by_rank(
        """
plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LazyLinear(3))
plain[0].bias.requires_grad_(False)
results["entries"] = ddp_check.describe(plain)
results["meta"] = ddp_check.parameter_digest(nn.Linear(4, 4, device="meta")) == ddp_check.parameter_digest(nn.Linear(4, 4))
""",
        tmp_path,
        world_size=1,
    )
    assert results["entries"] == [
        ["0.weight", [4, 4], "float32", True],
        ["0.bias", [4], "float32", False],
        ["1.weight", [4], "float32", True],
        ["1.bias", [4], "float32", True],
        ["2.weight", None, "float32", True],
        ["2.bias", None, "float32", True],
    ]
    assert results["meta"] is True


def test_wrong_gradients_are_detected(tmp_path: Path) -> None:
    """The phase's own comparison, of tensors that are a little, or not at all, what they must be."""
    [results] = by_rank(
        """
from provision_runtime.smoke.phases import ddp
right = {"weight": torch.arange(6, dtype=torch.float32), "bias": torch.ones(2)}
def compare(**changes):
    return ddp.gradient_finding(right, {**right, **changes})
results["right"] = compare() is None
results["rounded"] = compare(bias=right["bias"] * (1 + 1e-5)) is None
results["off"] = compare(bias=right["bias"] * 1.01).message
results["nan"] = compare(weight=right["weight"] * float("nan")).id
""",
        tmp_path,
        world_size=1,
    )
    assert (results["right"], results["rounded"], results["nan"]) == (
        True,
        True,
        "gradient-mismatch",
    )
    assert results["off"] == "the gradient of bias differs by 0.01 from the single-process one"
