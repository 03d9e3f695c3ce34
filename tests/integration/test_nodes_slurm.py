"""`provision nodes` on a real Slurm: partitions, states, and `srun` where ssh is forbidden."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provision.cluster import actions
from provision.cluster.inventory import NodeDefaults, select_nodes
from provision.cluster.remote import run_action
from provision_runtime.node.program import MARK
from tests.integration.conftest import Home, make_home
from tests.integration.slurm_cluster import GPUS, SlurmCluster
from tests.integration.test_nodes_ssh import reasons
from tests.programs import write_program
from tests.results import parse_result
from tests.unit.cli.test_quickstart import quick_start

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return make_home(tmp_path_factory.mktemp("user"))


def use_srun(user: Home, python: str = "/usr/bin/python3") -> None:
    (user.envs.parent / "nodes.yml").write_text(
        "schema: 1\ngroups:\n  all: {from: slurm, partition: gpu}\n"
        f"defaults: {{via: srun, python: {json.dumps(python)}}}\n"
    )


def check_in_allocation(
    user: Home, cluster: SlurmCluster, *options: str
) -> dict[str, dict[str, Any]]:
    provision = str(Path(sys.executable).parent / "provision")
    result = subprocess.run(
        ["salloc", "--quiet", *options, provision, "nodes", "check", "--on", "all", "--json"],
        cwd=user.envs.parent,
        env={**user.env, **cluster.environment},
        capture_output=True,
        text=True,
    )
    return {each["name"]: each for each in parse_result(result.stdout)["nodes"]}


def test_partition_with_states_and_gpus(user: Home, slurm_cluster: SlurmCluster) -> None:
    slurm_cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=bad | fan")
    result = user.run(
        "nodes", "list", "--on", "slurm:gpu!n4", SLURM_CONF=slurm_cluster.environment["SLURM_CONF"]
    )
    rows = [line.split("  ") for line in result.stdout.splitlines()]
    assert [row[0] for row in rows[1:]] == ["n[1,3]", "n2"]
    assert "drained (bad | fan)" in result.stdout
    assert f"{GPUS} x GPU" in result.stdout


@pytest.mark.exhaustive
def test_quick_starts_list_nodes_and_jobs(user: Home, slurm_cluster: SlurmCluster) -> None:
    """As printed: the first command of an administrator, the last of a user of Slurm."""
    conf = slurm_cluster.environment["SLURM_CONF"]
    listed = []
    for command in (quick_start("For administrators of 50 nodes")[0], quick_start("Slurm")[-1]):
        result = user.run(*shlex.split(command), SLURM_CONF=conf)
        assert result.returncode == 0, result.stderr
        listed.append(result.stdout)
    names = [line.split()[0] for line in listed[0].splitlines()[1:]]
    assert names[0].startswith("n[1") and "idle" in listed[0]
    # The cluster may still show jobs of the tests before.
    assert listed[1].startswith(("no jobs", "job  "))


def test_unknown_partition(user: Home, slurm_cluster: SlurmCluster) -> None:
    result = user.run(
        "nodes", "list", "--on", "slurm:gpus", SLURM_CONF=slurm_cluster.environment["SLURM_CONF"]
    )
    assert result.returncode == 3
    assert "Slurm has no partition `gpus`. Partitions: gpu, pair, urgent." in result.stderr


def test_nodes_of_an_allocation_answer_through_srun(
    user: Home, slurm_cluster: SlurmCluster
) -> None:
    use_srun(user)
    report = check_in_allocation(user, slurm_cluster, "--nodes=3")
    assert reasons(report) == {"n4": ["not-in-allocation"]}
    assert [report[name]["facts"]["host"]["name"] for name in ("n1", "n2", "n3")] == [
        "n1",
        "n2",
        "n3",
    ]
    assert [warning["reason"] for warning in report["n1"]["warnings"]] == ["gpu-count"]


def test_outside_of_an_allocation(user: Home, slurm_cluster: SlurmCluster) -> None:
    use_srun(user)
    result = user.run(
        "nodes", "check", "--on", "all", SLURM_CONF=slurm_cluster.environment["SLURM_CONF"]
    )
    assert result.returncode == 3
    assert "salloc" in result.stderr


def test_dead_node_of_an_allocation_does_not_end_the_others(
    user: Home, slurm_cluster: SlurmCluster
) -> None:
    """Each node has a step of its own: srun ends one for all its nodes where one cannot start it."""
    use_srun(user)
    slurm_cluster.stop_slurmd("n4")
    report = check_in_allocation(user, slurm_cluster, "--nodes=4")
    assert reasons(report) == {"n4": ["no-slurmd"]}


@pytest.mark.exhaustive
def test_task_that_is_killed_does_not_end_the_others(
    user: Home, slurm_cluster: SlurmCluster
) -> None:
    python = user.root / "killed-on-n2"
    write_program(
        python,
        "#!/bin/sh\n"
        "if [ $SLURMD_NODENAME = n2 ]; then sleep 2; kill -KILL $$; fi\n"
        "sleep 4\n"
        'exec /usr/bin/python3 "$@"\n',
    )
    use_srun(user, shlex.quote(str(python)))
    report = check_in_allocation(user, slurm_cluster, "--nodes=4")
    assert reasons(report) == {"n2": ["killed"]}


def test_task_that_ends_without_reading_does_not_end_the_others(
    slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script is long, so that it is not yet sent."""
    for name, value in slurm_cluster.environment.items():
        monkeypatch.setenv(name, value)
    job = slurm_cluster.run(
        *("sbatch", "--parsable", "--nodes=4", "--wrap=sleep 600"),
        *("--output", str(tmp_path / "job")),
    ).strip()
    slurm_cluster.wait_for_job(job, "RUNNING")
    defaults = NodeDefaults(via="srun", allocated="n[1-4]", srun_options=("--jobid", job))
    document = '{\\"identity\\": [\\"%s\\", \\"\\"], \\"result\\": {\\"active\\": false}}'
    reply = f'printf "\\n{MARK}{document}\\n" $SLURMD_NODENAME'
    script = f"[ $SLURMD_NODENAME = n2 ] && exit 3\n{{ cat >/dev/null; {reply}; exit; }}\n"
    script += "# a comment\n" * 300_000
    replies = run_action(
        select_nodes("slurm:gpu").nodes,
        actions.PROBE,
        script,
        stage="check",
        timeout_s=60,
        defaults=defaults,
    )
    failures = {reply.node.name: reply.failure.reason for reply in replies if reply.failure}
    assert failures == {"n2": "bad-answer"}
