"""The smoke test over nodes of a real Slurm and over real ssh hosts, with real torch and real faults."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import provision_runtime
from tests.integration.conftest import Home, environment_folder
from tests.integration.slurm_cluster import SlurmCluster
from tests.integration.smoke_process import PYTHON
from tests.integration.ssh_hosts import SshHosts
from tests.integration.virtual_hosts import VirtualHost, VirtualNetwork
from tests.integration.waiting import eventually
from tests.programs import write_program
from tests.results import parse_result

pytestmark = pytest.mark.torch

PREFIX = Path(PYTHON).parent.parent
# Ranks that wait for one which never comes do so for this long. Starting takes seconds.
RENDEZVOUS_S = 25
TIMEOUT_S = 540.0
QUICK = ("--quick", "--set=ranks=1", "--set=backend=gloo", "--set=only=barrier")


def smoke(home: Home, variables: dict[str, str], on: str, *options: str) -> tuple[int, Any]:
    """`provision smoke --on` with the environment that the tests have; its exit code and report."""
    folder = environment_folder(PREFIX)
    result = home.run(
        *("smoke", folder.name, "--envs", str(folder.parent), "--prefix", str(PREFIX)),
        *("--on", on, *QUICK, f"--set=deadline=rendezvous={RENDEZVOUS_S}", "--json", *options),
        timeout_s=TIMEOUT_S,
        **variables,
    )
    assert result.returncode in (0, 1), result.stderr
    document = parse_result(result.stdout)
    return result.returncode, document


def states(document: Any) -> dict[str, str]:
    return {row["node"]: row["state"] for row in document["nodes"]}


def on_ssh(hosts: SshHosts) -> dict[str, str]:
    path = hosts.environment["PATH"].partition(":")[0]
    return {"PATH": f"{path}:{os.environ['PATH']}"}


# On this host alone, /dev has a GPU that torch does not see: its driver is gone.
LOSE_GPU = """
mount -t tmpfs none "$0"
mkdir "$0/upper" "$0/work" "$0/shm"
mount --bind /dev/shm "$0/shm"
mount -t overlay -o "lowerdir=/dev,upperdir=$0/upper,workdir=$0/work" none /dev
mount --bind "$0/shm" /dev/shm
: >/dev/nvidia0
"""
FIND_GPU = 'umount -l /dev/shm /dev "$0/shm" "$0"'


@contextlib.contextmanager
def lost_gpu(host: VirtualHost, folder: Path) -> Iterator[None]:
    host.run("sh", "-ec", LOSE_GPU, str(folder))
    try:
        yield
    finally:
        host.run("sh", "-ec", FIND_GPU, str(folder))


@contextlib.contextmanager
def other_python(host: VirtualHost, script: Path, text: str) -> Iterator[None]:
    """On this host alone, a script takes the place of the environment's interpreter."""
    write_program(script, text)
    python = str(Path(PYTHON).resolve())
    host.run("mount", "--bind", str(script), python)
    try:
        yield
    finally:
        host.run("umount", "-l", python)  # what was started by it may still be ending


@contextlib.contextmanager
def without_peers(network: VirtualNetwork, host: VirtualHost) -> Iterator[None]:
    """A host that the other hosts cannot reach, although this machine can."""
    with contextlib.ExitStack() as links:
        for other in network.hosts:
            if other != host and other.name != "controller":
                links.enter_context(network.broken_link(host, other))
        yield


RUNTIME = Path(str(provision_runtime.__file__)).parent


@pytest.fixture
def health_check(home: Home, slurm_cluster: SlurmCluster) -> Iterator[Path]:
    """The script as the command prints it. The nodes run this tree's runtime, which the prefix may
    have in an older state."""
    folder = environment_folder(PREFIX)
    printed = home.run("smoke", folder.name, "--health-check", "--prefix", str(PREFIX))
    assert printed.returncode == 0, printed.stderr
    script = slurm_cluster.folder / "health-check"
    write_program(script, printed.stdout)
    (site,) = PREFIX.glob("lib/python3*/site-packages/provision_runtime")
    for host in slurm_cluster.nodes:
        host.run("mount", "--bind", str(RUNTIME), str(site))
    yield script
    slurm_cluster.set_options()
    for host in slurm_cluster.nodes:
        host.run("umount", "--lazy", str(site))  # a process of the last job may not be gone yet


# What the environment's interpreter prints on a node that lost its GPU.
FAULTY_NODE = "#!/bin/sh\necho fail gpu-lost cuda:0 is gone\n"


@pytest.mark.slurm
def test_health_check_drains_the_node_that_lost_its_gpu(
    slurm_cluster: SlurmCluster, health_check: Path, tmp_path: Path
) -> None:
    """slurmd runs it as it starts. At short intervals slow runs would overlap on a busy machine, and the
    last of them drain the node in a later test."""
    # On a busy machine more time than the script has by itself.
    health_check.write_text(health_check.read_text().replace("DEADLINE_S=25", "DEADLINE_S=55"))
    with lost_gpu(slurm_cluster["n2"], tmp_path):
        slurm_cluster.set_options(
            *(f"HealthCheckProgram={health_check}", "HealthCheckInterval=3600"),
            "HealthCheckNodeState=IDLE",
        )
        slurm_cluster.stop_slurmd("n2")
        slurm_cluster.start_slurmd("n2")
        slurm_cluster.wait_for_states("drained", "n2")
    shown = slurm_cluster.run("scontrol", "--oneliner", "show", "node", "n2")
    assert "Reason=provision smoke: gpu-lost" in shown


@pytest.mark.slurm
def test_health_check_drains_no_second_node(
    slurm_cluster: SlurmCluster, health_check: Path, tmp_path: Path
) -> None:
    node = ("scontrol", "update", "NodeName=n1")
    slurm_cluster.run(*node, "State=DRAIN", "Reason=provision smoke: gpu-lost")
    host = slurm_cluster["n2"]
    command = ("env", "-i", *variables_of(slurm_cluster, "n2"), str(health_check))
    with other_python(host, tmp_path / "python", FAULTY_NODE):
        assert host.run(*command) == ""
        assert slurm_cluster.states()["n2"] == "idle"
        slurm_cluster.run(*node, "State=RESUME")
        host.run(*command)
    assert slurm_cluster.states()["n2"] == "drained"


@pytest.mark.slurm
@pytest.mark.parametrize("script", ["sleep 300", "kill -SEGV $$", "exit 1", "echo fail"])
def test_health_check_leaves_what_is_slow_or_broken_otherwise(
    slurm_cluster: SlurmCluster, health_check: Path, tmp_path: Path, script: str
) -> None:
    text = health_check.read_text().replace("DEADLINE_S=25", "DEADLINE_S=2")
    health_check.write_text(text)
    host = slurm_cluster["n2"]
    with other_python(host, tmp_path / "python", f"#!/bin/sh\n{script}\n"):
        host.run("env", "-i", *variables_of(slurm_cluster, "n2"), str(health_check))
    assert slurm_cluster.states()["n2"] == "idle"


@pytest.mark.exhaustive
@pytest.mark.slurm
def test_prolog_keeps_a_job_from_a_node_that_lost_its_gpu(
    slurm_cluster: SlurmCluster, health_check: Path, tmp_path: Path
) -> None:
    """Slurm starts the job again on another node, if slurm.conf says not to hold it."""
    slurm_cluster.set_options(
        f"Prolog={health_check}", "PrologFlags=Alloc", "SchedulerParameters=nohold_on_prolog_fail"
    )
    with other_python(slurm_cluster["n1"], tmp_path / "python", FAULTY_NODE):
        job = slurm_cluster.run(
            *("sbatch", "--parsable", "--nodes=1", "--requeue", "--partition=pair"),
            *("--output", str(tmp_path / "job"), "--open-mode=append", "--wrap=hostname"),
        ).strip()
        slurm_cluster.wait_for_states("drained", "n1")
        # Slurm starts a requeued job two minutes later.
        slurm_cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now+3")
        slurm_cluster.wait_for_job(job, "COMPLETED")
    assert (tmp_path / "job").read_text() == "n2\n"
    assert slurm_cluster.states()["n1"] == "drained"
    shown = slurm_cluster.run("scontrol", "--oneliner", "show", "node", "n1")
    assert "Reason=provision smoke: gpu-lost" in shown


def variables_of(cluster: SlurmCluster, node: str) -> list[str]:
    """All that Slurm gives its programs, and no PATH."""
    return [f"SLURM_CONF={cluster.environment['SLURM_CONF']}", f"SLURMD_NODENAME={node}"]


@pytest.mark.slurm
def test_slurm_nodes_pass_and_are_given_back(home: Home, slurm_cluster: SlurmCluster) -> None:
    variables = dict(slurm_cluster.environment)
    status, document = smoke(home, variables, "slurm:gpu", "--nodes", "2")
    assert (status, document["verdict"]) == (0, "pass"), document
    assert states(document) == dict.fromkeys(("n1", "n2"), "passed")
    assert document["report"]["world_size"] == 2
    assert sorted(document["report"]["hosts"]) == ["n1", "n2"]
    # It is COMPLETING first.
    eventually(lambda: slurm_cluster.job_state(document["job"]) == "CANCELLED")


@pytest.mark.exhaustive
@pytest.mark.slurm
def test_slurm_node_that_lost_its_gpu_is_found(
    home: Home, slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    variables = dict(slurm_cluster.environment)
    with lost_gpu(slurm_cluster["n3"], tmp_path):
        status, document = smoke(home, variables, "slurm:gpu", "--nodes", "3", "--pairs")
    assert (status, document["verdict"]) == (1, "fail")
    assert states(document) == {"n1": "passed", "n2": "passed", "n3": "bad"}, document["tests"]
    assert document["nodes"][2]["findings"][0] == "gpu-lost"


@pytest.mark.slurm
@pytest.mark.exhaustive
def test_slurm_node_without_network_to_its_peers_is_found(
    home: Home, slurm_cluster: SlurmCluster
) -> None:
    with without_peers(slurm_cluster.network, slurm_cluster["n3"]):
        _, document = smoke(home, dict(slurm_cluster.environment), "slurm:gpu", "--pairs")
    assert states(document) == {"n1": "passed", "n2": "passed", "n3": "bad", "n4": "passed"}
    assert document["nodes"][2]["findings"][0] == "store-filtered", document["nodes"]


@pytest.mark.slurm
def test_drained_node_is_left_out_and_named(home: Home, slurm_cluster: SlurmCluster) -> None:
    slurm_cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=new fan")
    status, document = smoke(home, dict(slurm_cluster.environment), "slurm:pair")
    assert (status, document["verdict"]) == (0, "pass")
    assert states(document) == {"n1": "passed", "n2": "left out"}
    assert document["nodes"][1]["message"] == "drained (new fan)"


@pytest.mark.slurm
def test_nodes_that_slurm_does_not_give_in_time_leave_no_job(
    home: Home, slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    busy = slurm_cluster.run(
        *("sbatch", "--parsable", "--nodes=4", "--exclusive", "--wrap=sleep 600"),
        *("--output", str(tmp_path / "busy")),
    ).strip()
    slurm_cluster.wait_for_job(busy, "RUNNING")
    impatient = tmp_path / "nodes.yml"
    impatient.write_text("schema: 1\ndefaults: {queue_s: 1}\n")
    folder = environment_folder(PREFIX)
    result = home.run(
        *("smoke", folder.name, "--envs", str(folder.parent), "--prefix", str(PREFIX)),
        *("--on", "slurm:gpu", *QUICK, "--inventory", str(impatient)),
        timeout_s=TIMEOUT_S,
        **slurm_cluster.environment,
    )
    assert result.returncode == 13, result.stderr
    assert "Resources" in result.stderr
    assert slurm_cluster.run("squeue", "--noheader", "--format=%A").split() == [busy]


@pytest.mark.sshd
def test_ssh_hosts_pass(home: Home, ssh_hosts: SshHosts) -> None:
    status, document = smoke(home, on_ssh(ssh_hosts), "h1,h2")
    assert (status, document["verdict"]) == (0, "pass"), document
    assert states(document) == {"h1": "passed", "h2": "passed"}


@pytest.mark.sshd
@pytest.mark.exhaustive
def test_host_that_cannot_be_tested_is_no_success(home: Home, ssh_hosts: SshHosts) -> None:
    ssh_hosts.stop_sshd(ssh_hosts["h8"])
    try:
        status, document = smoke(home, on_ssh(ssh_hosts), "h1,h8")
    finally:
        ssh_hosts.start_sshd(ssh_hosts["h8"])
    assert (status, document["verdict"]) == (1, "unknown")
    assert states(document) == {"h1": "passed", "h8": "untested"}
    assert document["nodes"][1]["message"].startswith("refused:")


@pytest.mark.sshd
@pytest.mark.exhaustive
def test_broken_link_between_ssh_hosts_is_found(home: Home, ssh_hosts: SshHosts) -> None:
    with ssh_hosts.network.broken_link(ssh_hosts["h1"], ssh_hosts["h2"]):
        _, document = smoke(home, on_ssh(ssh_hosts), "h[1-4]", "--pairs")
    assert document["isolation"]["bad_nodes"] == []
    assert document["isolation"]["bad_links"] == [["h1", "h2"]]
    assert len(document["isolation"]["passing"]) == 3
