"""`doctor --on` over real ssh and srun; what `doctor script` says of a batch script, and what a real
Slurm does with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import make_home
from tests.integration.slurm_cluster import SlurmCluster
from tests.integration.smoke_process import PYTHON
from tests.integration.ssh_hosts import SshHosts
from tests.integration.test_doctor_causes import DOCTOR
from tests.integration.test_nodes_slurm import use_srun
from tests.integration.test_nodes_ssh import mounted
from tests.results import parse_result

pytestmark = pytest.mark.slurm

PROVISION = str(Path(sys.executable).parent / "provision")
SMALL_MEMORY = ("-t", "tmpfs", "-o", "size=32m", "tmpfs")
HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n#SBATCH --partition=gpu\n"
CASES = {
    "rank-expanded-early": (
        'srun bash -c "echo rank $SLURM_PROCID"\n',
        {"rank 0"},
        "srun bash -c 'echo rank $SLURM_PROCID'\n",
        {"rank 0", "rank 1", "rank 2", "rank 3"},
    ),
    "gpus-hidden": (
        "#SBATCH --gpus-per-task=1\nsrun bash -c 'echo $CUDA_VISIBLE_DEVICES | tr , \"\\n\" | wc -l'\n",
        {"1"},
        "#SBATCH --gpus-per-node=2\nsrun bash -c 'echo $CUDA_VISIBLE_DEVICES | tr , \"\\n\" | wc -l'\n",
        {"2"},
    ),
    "node-count-fixed": (
        "echo nodes=$SLURM_NNODES for: srun torchrun --nnodes=4\n",
        {"nodes=2 for: srun torchrun --nnodes=4"},
        "echo nodes=$SLURM_NNODES for: srun torchrun --nnodes=$SLURM_NNODES\n",
        {"nodes=2 for: srun torchrun --nnodes=2"},
    ),
}


@pytest.mark.sshd
def test_nodes_over_ssh_and_srun(
    tmp_path: Path, ssh_hosts: SshHosts, slurm_cluster: SlurmCluster
) -> None:
    """One node of each kind has a small /dev/shm, and one host of ssh is down."""
    user = make_home(tmp_path / "user")
    use_srun(user)
    path = f"{ssh_hosts.environment['PATH']}:{user.env['PATH']}"
    variables = {**user.env, **slurm_cluster.environment, "PATH": path}
    commands = {
        "h": (PROVISION, "doctor", "--on", "ssh:h[1-3]"),
        "n": (
            "salloc",
            "--quiet",
            "--nodes=2",
            "--nodelist=n[1-2]",
            PROVISION,
            "doctor",
            "--on",
            "all",
        ),
    }
    reports = {}
    ssh_hosts.stop_sshd(ssh_hosts["h3"])
    try:
        with (
            mounted(ssh_hosts, "h2", "/dev/shm", *SMALL_MEMORY),
            mounted(slurm_cluster, "n2", "/dev/shm", *SMALL_MEMORY),
        ):
            for letter, command in commands.items():
                child = subprocess.run(
                    [*command, "--only", "shm-small", "--json"],
                    cwd=user.envs.parent,
                    env=variables,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert child.returncode == 1, child.stderr
                reports[letter] = parse_result(child.stdout)
    finally:
        ssh_hosts.start_sshd(ssh_hosts["h3"])
    assert _reasons(reports["h"]) == {"h3": "refused"}
    assert _reasons(reports["n"]) == {"n3": "not-in-allocation", "n4": "not-in-allocation"}
    for letter, report in reports.items():
        ids = {}
        for name, node in report["nodes"].items():
            assert node["host"] == name
            ids[name] = [finding["id"] for finding in node["findings"]]
        assert ids == {f"{letter}1": [], f"{letter}2": ["shm-small"]}


def _reasons(report: dict[str, Any]) -> dict[str, str]:
    """Why nodes did not answer."""
    return {name: failure["reason"] for name, failure in report["failures"].items()}


def findings(path: Path, cluster: SlurmCluster) -> set[str]:
    variables = {**os.environ, **cluster.environment}
    child = subprocess.run(
        [*DOCTOR, "--script", str(path)],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    return {finding["id"] for finding in json.loads(child.stdout)["findings"]}


def printed(cluster: SlurmCluster, path: Path, state: str = "COMPLETED") -> set[str]:
    """The lines of a job's output, once it is in a state."""
    out = path.with_suffix(".out")
    job = cluster.run("sbatch", "--parsable", f"--output={out}", str(path)).strip()
    cluster.wait_for_job(job, state)
    return set(out.read_text().split("\n")) - {""}


@pytest.mark.parametrize("id", CASES)
def test_a_fault_and_what_it_does(id: str, tmp_path: Path, slurm_cluster: SlurmCluster) -> None:
    faulty, wrong, mended, right = CASES[id]
    for text, expected, output in ((faulty, {id}, wrong), (mended, set(), right)):
        path = tmp_path / ("faulty.sbatch" if expected else "mended.sbatch")
        path.write_text(HEAD + text)
        assert findings(path, slurm_cluster) == expected
        assert printed(slurm_cluster, path) == output


def cpus(lines: set[str]) -> int:
    """How many CPUs a task may use, from `Cpus_allowed_list:  0-1`."""
    [line] = lines
    total = 0
    for part in line.split()[1].split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


@pytest.mark.skipif(os.cpu_count() == 1, reason="a task of two CPUs needs two")
def test_cpus_that_this_release_of_srun_forgets(
    tmp_path: Path, slurm_cluster: SlurmCluster
) -> None:
    """A job of two CPUs, whose task may use one of them, until srun is given the number."""
    version = slurm_cluster.run("srun", "--version").split()[1]
    release = tuple(int(number) for number in version.split(".")[:2])
    forgets = (22, 5) <= release < (23, 11)
    head = "#!/bin/bash\n#SBATCH --partition=gpu\n#SBATCH --ntasks=1\n#SBATCH --cpus-per-task=2\n"
    step = "srun --cpu-bind=cores grep Cpus_allowed_list /proc/self/status\n"
    faulty, mended = tmp_path / "faulty.sbatch", tmp_path / "mended.sbatch"
    faulty.write_text(head + step)
    mended.write_text(head + "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\n" + step)
    assert findings(faulty, slurm_cluster) == ({"srun-cpus"} if forgets else set())
    assert cpus(printed(slurm_cluster, faulty)) == (1 if forgets else 2)
    assert findings(mended, slurm_cluster) == set()
    assert cpus(printed(slurm_cluster, mended)) == 2


@pytest.mark.torch
@pytest.mark.exhaustive
def test_agents_that_wait_for_nodes_that_never_come(
    tmp_path: Path, slurm_cluster: SlurmCluster
) -> None:
    """torchrun's agents on the two nodes of a job: its rendezvous ends when all have joined."""
    head = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --partition=gpu\n"
    master = "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
    step = (
        f"srun {PYTHON} -m torch.distributed.run --nnodes=NODES --rdzv-backend=c10d"
        f" --rdzv-endpoint={master}:29417 --rdzv-conf=join_timeout=10 --no-python true\n"
    )
    faulty, mended = tmp_path / "faulty.sbatch", tmp_path / "mended.sbatch"
    faulty.write_text(head + step.replace("NODES", "4"))
    mended.write_text(head + step.replace("NODES", "$SLURM_NNODES"))
    assert findings(faulty, slurm_cluster) == {"node-count-fixed"}
    assert "RendezvousTimeoutError" in "".join(printed(slurm_cluster, faulty, "FAILED"))
    assert findings(mended, slurm_cluster) == set()
    printed(slurm_cluster, mended)
