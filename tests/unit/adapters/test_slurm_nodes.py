"""What sinfo says about nodes, by two of its versions, and what Slurm refuses.

22.05.txt was captured. 24.11.txt is written by sinfo(1) of 24.11: states and their signs, sockets of GRES.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from provision.adapters.slurm import allocations
from provision.adapters.slurm import nodes as slurm_nodes
from provision.adapters.slurm.command import environment_outside_jobs
from provision.core.errors import InvalidSpec, ProvisionError, ToolMissing, Unreachable
from tests.paths import DATA
from tests.programs import write_program

NODES = DATA / "sinfo"


def nodes_of(version: str) -> dict[str, slurm_nodes.SlurmNode]:
    listed = slurm_nodes.parse_nodes((NODES / f"{version}.txt").read_text())
    return {node.name: node for node in listed}


def test_nodes_of_22_05() -> None:
    nodes = nodes_of("22.05")
    assert list(nodes) == ["n1", "n2", "n3", "n4"]
    assert (nodes["n1"].gpus, nodes["n1"].gpu_type) == (2, "")
    assert nodes["n1"].features == ()
    assert nodes["n2"].state == "drained"
    assert nodes["n2"].reason == "bad fan | noisy"
    assert (nodes["n3"].state, nodes["n3"].flags, nodes["n3"].responds) == ("down", "*", False)
    assert nodes["n4"].responds


def test_nodes_of_24_11() -> None:
    nodes = nodes_of("24.11")
    assert (nodes["gpu-01"].state, nodes["gpu-01"].flags) == ("mixed", "-")
    assert nodes["gpu-01"].host == "gpu-01.lab"
    assert nodes["gpu-01"].features == ("a100", "ib")
    assert (nodes["gpu-01"].gpus, nodes["gpu-01"].gpu_type) == (8, "a100")
    assert (nodes["gpu-03"].gpus, nodes["gpu-03"].gpu_type) == (8, "h100")
    assert nodes["cpu-01"].cpus == 128
    assert nodes["cpu-03"].gpus == 0
    starting = [name for name, node in nodes.items() if node.starts_jobs]
    assert starting == ["gpu-01", "gpu-03", "gpu-04", "cpu-01", "cpu-02"]
    silent = [name for name, node in nodes.items() if not node.responds]
    assert silent == ["gpu-02", "gpu-03", "gpu-04", "cpu-03"]


@pytest.mark.parametrize(
    ("gres", "gpus", "gpu_type"),
    [
        ("gpu:2080ti:8", {"2080ti": 8}, "2080ti"),
        ("gpu:3090:2(S:0-1)", {"3090": 2}, "3090"),
        ("gpu:1g.10gb:7,gpu:a100:1", {"1g.10gb": 7, "a100": 1}, "1g.10gb+a100"),
        ("gpu:h100:4(S:0),gpu:h100:4(S:1)", {"h100": 8}, "h100"),
        ("gpu:a100:no_consume:4", {"a100": 4}, "a100"),
        ("gpu:4", {"": 4}, ""),
        ("gpu", {"": 1}, ""),
        ("gpumem:80G,shard:8", {}, ""),
    ],
)
def test_types_of_gpus(gres: str, gpus: dict[str, int], gpu_type: str) -> None:
    line = f"n1|n1|n1|idle|(null)|{gres}|8|1000+|gpu|none"
    [node] = slurm_nodes.parse_nodes(line)
    assert (node.gpus_by_type, node.gpu_type) == (gpus, gpu_type)
    assert node.gpus == sum(gpus.values())


@pytest.mark.parametrize("text", ["", "\n", "n1|n1\n", "sinfo: error: slurm_load_node\n"])
def test_lines_that_are_no_nodes(text: str) -> None:
    assert slurm_nodes.parse_nodes(text) == []


def put_command(
    folder: Path, script: str, monkeypatch: pytest.MonkeyPatch, name: str = "sinfo"
) -> None:
    program = folder / name
    write_program(program, f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_unknown_partition_lists_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sinfo itself prints nothing and ends with 0."""
    put_command(tmp_path, "echo gpu; echo pair", monkeypatch)
    with pytest.raises(InvalidSpec) as caught:
        slurm_nodes.list_nodes("gpus")
    assert str(caught.value) == "Slurm has no partition `gpus`. Partitions: gpu, pair."


def test_controller_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = "slurm_load_partitions: Unable to contact slurm controller (connect failure)"
    put_command(tmp_path, f"echo '{message}' >&2; exit 1", monkeypatch)
    with pytest.raises(Unreachable) as caught:
        slurm_nodes.list_nodes("gpu")
    expected = (
        "Slurm's controller does not answer: Unable to contact slurm controller (connect failure)"
    )
    assert expected in str(caught.value)


def test_no_sinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing) as caught:
        slurm_nodes.list_nodes("gpu")
    assert "There is no `sinfo` on this machine." in str(caught.value)


def test_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-3]")
    assert slurm_nodes.allocation() is None
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert slurm_nodes.allocation() == "n[1-3]"


def test_what_is_submitted_within_a_job_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"SLURM_JOB_ID": "1", "SLURM_CPUS_PER_TASK": "2", "SLURM_GPUS": "1"}
    own = {"SLURM_CONF": "/srv/slurm.conf", "SLURM_CLUSTERS": "b", "LAB": "x"}
    for name, value in {**job, **own}.items():
        monkeypatch.setenv(name, value)
    environment = environment_outside_jobs()
    assert not job.keys() & environment.keys()
    assert own.items() <= environment.items()
    monkeypatch.delenv("SLURM_JOB_ID")  # as a user sets them for his own commands
    assert environment_outside_jobs()["SLURM_GPUS"] == "1"


def allocation() -> AbstractContextManager[object]:
    return allocations.allocate(["n1"], partition="gpu", gpus=0, name="test", time_s=60, queue_s=1)


@pytest.mark.parametrize(
    ("message", "error", "expected"),
    [
        (
            "sbatch: error: Unable to contact slurm controller (connect failure)",
            Unreachable,
            "Slurm's controller does not answer",
        ),
        (
            "sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
            "sbatch: error: fetch_config: DNS SRV lookup failed\n"
            "sbatch: fatal: Could not establish a configuration source",
            Unreachable,
            "Slurm is not configured on this machine: `sbatch` finds no slurm.conf. Run",
        ),
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition "
            "combination specified",
            InvalidSpec,
            "Slurm rejected the job: Batch job submission failed: Invalid account",
        ),
    ],
)
def test_allocation_that_slurm_does_not_give(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    message: str,
    error: type[ProvisionError],
    expected: str,
) -> None:
    put_command(tmp_path, f"echo '{message}' >&2; exit 1", monkeypatch, "sbatch")
    with pytest.raises(error) as caught, allocation():
        pass
    assert expected in str(caught.value)


def test_allocation_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing) as caught, allocation():
        pass
    assert "There is no `sbatch` on this machine. Run this where Slurm's" in str(caught.value)
