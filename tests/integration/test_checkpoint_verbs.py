"""`provision checkpoint` while a job saves with torch; the host's interpreter needs no torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.smoke_process import PYTHON, environment
from tests.results import parse_result

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
PROVISION = Path(sys.executable).parent / "provision"
STEPS = [100, 200, 300]


@dataclass
class Job:
    root: Path
    ranks: list[subprocess.Popen[str]]
    pid: int

    def start_saving(self) -> None:
        """Until both ranks have written all that is theirs."""
        for rank in self.ranks:
            assert rank.stdin is not None and rank.stdout is not None
            print(file=rank.stdin, flush=True)
        for rank in self.ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "saving\n"

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    root = tmp_path_factory.mktemp("job") / "checkpoints"
    settings = {
        **environment(),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = [PYTHON, str(Path(__file__).with_name("saving_job.py")), str(root)]
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
        "env": settings,
    }
    ranks = [subprocess.Popen([*command, str(rank)], **pipes) for rank in range(2)]
    try:
        lines = [rank.stdout.readline().split() for rank in ranks if rank.stdout]
        assert [fields[:1] for fields in lines] == [["saved"]] * 2
        yield Job(root, ranks, int(lines[0][1]))
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def provision(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROVISION, "checkpoint", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def run_json(*arguments: object, code: int = 0) -> Any:
    result = provision(*arguments, "--json")
    assert result.returncode == code, result.stdout + result.stderr
    return parse_result(result.stdout)


@pytest.mark.exhaustive
def test_host_reads_checkpoints_written_by_torch(job: Job) -> None:
    rows = run_json("list", job.root)["checkpoints"]
    assert [(row["step"], row["generation"], row["world_size"], row["tensors"]) for row in rows] == [
        (100, 0, 2, 5), (200, 0, 2, 5), (300, 1, 2, 5),
    ]  # fmt: skip
    assert all(row["bytes"] > 7_000_000 for row in rows)
    tensors = {
        tensor["name"]: (tensor["dtype"], tensor["shape"], tensor["bytes"])
        for tensor in run_json("show", job.root)["tensors"]
    }
    assert tensors == {
        "model.bias": ("torch.float32", [600], 2400),
        "model.steps": ("torch.int64", [], 8),
        "model.weight": ("torch.float32", [600, 1000], 2_400_000),
        "optim.moment0": ("torch.float64", [300, 1000], 2_400_000),
        "optim.moment1": ("torch.float64", [300, 1000], 2_400_000),
    }
    assert [
        tensor["verdict"] for tensor in run_json("verify", job.root, "--all")["checkpoints"]
    ] == ["whole"] * 3


def test_flipped_bit_is_reported_by_tensor_name(job: Job, tmp_path: Path) -> None:
    root = shutil.copytree(job.root, tmp_path / "copy")
    moment = next(
        tensor
        for tensor in run_json("show", root, "--step", 200)["tensors"]
        if tensor["name"] == "optim.moment1"
    )
    path = root / "step-000000000200" / moment["files"][0]
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)
    output = run_json("verify", root, "--all", code=1)["checkpoints"]
    assert [(tensor["step"], tensor["verdict"], [damage["tensors"] for damage in tensor["damages"]]) for tensor in output] == [
        (100, "whole", []), (200, "damaged", [["optim.moment1"]]), (300, "whole", []),
    ]  # fmt: skip


def test_running_save_is_kept_until_its_job_ends(job: Job) -> None:
    job.start_saving()
    row = run_json("list", job.root)["unfinished"][0]
    assert (row["pid"], row["writer"]) == (job.pid, "alive")
    assert row["bytes"] > 4_800_000
    assert run_json("prune", job.root, "--keep", 3)["left"][0]["name"] == row["name"]
    job.kill()
    assert run_json("list", job.root)["unfinished"][0]["writer"] == "gone"
    gone = run_json("prune", job.root, "--keep", 3)
    assert (gone["unfinished"], gone["removed"]) == ([row["name"]], [])
    assert gone["freed_bytes"] > 4_800_000
    assert sorted(path.name for path in job.root.iterdir() if path.name.startswith(".")) == []
    assert [
        checkpoint["verdict"] for checkpoint in run_json("verify", job.root, "--all")["checkpoints"]
    ] == ["whole"] * 3
