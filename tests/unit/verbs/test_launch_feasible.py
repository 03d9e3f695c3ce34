"""Jobs of Slurm that would wait forever, and nodes of Slurm that ssh would reach."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from click.testing import CliRunner

from provision import launch
from provision.adapters.slurm.nodes import Partition, parse_nodes
from provision.cli.main import cli
from provision.core.errors import InvalidSpec
from provision.verbs.launch.feasible import check_feasible
from tests.programs import write_program

SINFO = """\
a1|a1|a1|mixed|nvlink,ib|gpu:a100:4|64|512000|gpu|none
a2|a2|a2|reserved|nvlink,ib|gpu:a100:4|64|512000|gpu|none
b1|b1|b1|idle~|ib|gpu:a100:2,gpu:v100:2|32|128000|gpu|none
b2|b2|b2|drained|nvlink,ib|gpu:a100:4|64|512000|gpu|bad DIMM
b3|b3|b3|down*|nvlink,ib|gpu:a100:4|64|512000|gpu|Not responding
"""
NODES = parse_nodes(SINFO)
OPEN = Partition(state="up", max_time="1-00:00:00", min_nodes="1", max_nodes="4")


def job_of(constraint: str = "", **fields: Any) -> launch.JobSpec:
    return launch.JobSpec(
        name="train",
        environment=launch.PrefixEnvironment(path=PurePosixPath("/p")),
        slurm=launch.SlurmOptions(partition="gpu", constraint=constraint or None),
        **fields,
    )


@pytest.mark.parametrize(
    "job",
    [
        job_of(nodes=3, gpus=4),
        job_of(nodes=2, gpus=4, gpu_type="a100", time_s=86400),
        job_of(gpus=2, gpu_type="v100", memory_mib=128000, cpus=32),
        job_of("nvlink&ib", nodes=2),
        job_of("nvlink|ib", nodes=3),
        job_of("[rack1|rack2]*2"),  # Slurm itself judges it
    ],
)
def test_jobs_that_can_run(job: launch.JobSpec) -> None:
    check_feasible(job, OPEN, NODES)
    check_feasible(job, dataclasses.replace(OPEN, max_time="infinite", max_nodes="infinite"), NODES)


@pytest.mark.parametrize(
    ("job", "partition", "reason"),
    [
        (job_of(nodes=4), {}, r"b2: drained \(bad DIMM\)"),
        (job_of(nodes=5), {}, "more than the 4 of the partition gpu"),
        (job_of(nodes=3, gpus=4, gpu_type="a100"), {}, "b1: 2 x a100"),
        (job_of(gpus=1, gpu_type="h100"), {}, "0 x h100"),
        (job_of(time_s=86401), {}, "--time is more than the 1-00:00:00"),
        (job_of(), {"state": "down"}, "the partition gpu is down"),
        (job_of(), {"min_nodes": "2"}, "--nodes 1 is less than the 2 of the partition gpu"),
    ],
)
def test_jobs_that_would_wait_for_ever(
    job: launch.JobSpec, partition: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidSpec, match=reason):
        check_feasible(job, dataclasses.replace(OPEN, **partition), NODES)


@pytest.mark.parametrize(
    ("on", "is_refused"),
    [("a[1-2]", True), ("me@a1.lab", True), ("ssh:a[1-2]", False), ("desk1", False)],
)
def test_nodes_of_slurm_are_not_reached_by_ssh_unless_it_is_written(
    on: str, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "envs" / "toy").mkdir(parents=True)
    python = ".".join(map(str, sys.version_info[:2]))
    (tmp_path / "envs" / "toy" / "spec.yml").write_text(
        f"torch: '2.6'\ncuda: '12.4'\npython: '{python}'\n"
    )
    (tmp_path / "nodes").write_text(SINFO)
    write_program(tmp_path / "sinfo", f"#!/bin/sh\ncat {tmp_path}/nodes\n")
    write_program(tmp_path / "ssh", "#!/bin/sh\nexit 255\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["launch", "toy", "--on", on, "--dry-run", "--", "hostname"])
    assert ("--on slurm:PARTITION" in result.stderr) is is_refused, result.output
