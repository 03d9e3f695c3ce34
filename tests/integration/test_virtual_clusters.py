"""The test clusters themselves: that they are clusters, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.short_folders import short_folder
from tests.integration.slurm_cluster import GPUS, NODES, SlurmCluster
from tests.integration.ssh_hosts import HOSTS, SshHosts
from tests.integration.waiting import eventually

# Every test on these clusters shows that they work; CI leaves the tests of the clusters to those.
pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).parent.parent.parent
UNTIL_KILLED = """
import sys, time
from pathlib import Path
from tests.integration.ssh_hosts import start_ssh_hosts
with start_ssh_hosts(Path(sys.argv[1]), ("a", "b")) as hosts:
    print(hosts.network.gateway, flush=True)
    time.sleep(600)
"""


@pytest.mark.slurm
def test_slurm_runs_a_job_on_four_nodes_with_their_gpus(slurm_cluster: SlurmCluster) -> None:
    script = "echo $(hostname) $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
    lines = slurm_cluster.run("srun", "-N4", f"--gpus-per-node={GPUS}", "sh", "-c", script)
    assert sorted(lines.splitlines()) == [f"{node} {node} 0,1" for node in NODES]


@pytest.mark.slurm
def test_slurm_is_mended_after_a_drained_and_a_lost_node(slurm_cluster: SlurmCluster) -> None:
    slurm_cluster.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    assert slurm_cluster.states()["n2"] == "drained"
    slurm_cluster.stop_slurmd("n3")
    slurm_cluster.mend()
    assert sorted(slurm_cluster.run("srun", "-N4", "hostname").split()) == list(NODES)


@pytest.mark.sshd
def test_eight_hosts_answer_ssh_with_their_own_names(ssh_hosts: SshHosts) -> None:
    for name in HOSTS:
        assert ssh_hosts.run(name, "hostname; cat /etc/hostname").split() == [name, name]
    machine_ids = {ssh_hosts.run(name, "cat /etc/machine-id") for name in HOSTS}
    assert len(machine_ids) == len(HOSTS)


@pytest.mark.sshd
def test_hosts_have_files_of_their_own(ssh_hosts: SshHosts) -> None:
    ssh_hosts.run("h1", "echo of-h1 >/opt/file")
    assert (ssh_hosts["h1"].folder / "opt" / "file").read_text() == "of-h1\n"
    assert not (ssh_hosts["h2"].folder / "opt" / "file").exists()
    assert not Path("/opt/file").exists()


@pytest.mark.sshd
def test_broken_link_leaves_all_other_links(ssh_hosts: SshHosts) -> None:
    def reaches(source: str, target: str) -> bool:
        probe = f"</dev/tcp/{ssh_hosts[target].address}/22"
        words = ssh_hosts[source].command("timeout", "2", "bash", "-c", probe)
        return subprocess.run(words, capture_output=True).returncode == 0

    with ssh_hosts.network.broken_link(ssh_hosts["h1"], ssh_hosts["h2"]):
        assert not reaches("h1", "h2")
        assert not reaches("h2", "h1")
        assert reaches("h1", "h3")
    assert reaches("h1", "h2")


@pytest.mark.sshd
def test_nothing_is_left_after_a_kill() -> None:
    with short_folder("ssh") as folder:
        with subprocess.Popen(
            [sys.executable, "-c", UNTIL_KILLED, str(folder)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        ) as child:  # fmt: skip
            assert child.stdout is not None
            gateway = child.stdout.readline().strip()
            assert gateway in _addresses()
            assert _processes_of(folder)
            os.kill(child.pid, signal.SIGKILL)
        eventually(lambda: not _processes_of(folder) and gateway not in _addresses())
        assert str(folder) not in Path("/proc/mounts").read_text()


def _addresses() -> str:
    return subprocess.run(["ip", "-4", "addr"], capture_output=True, text=True, check=True).stdout


def _processes_of(folder: Path) -> list[str]:
    processes = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                processes.append(path.parent.name)
        except OSError:  # it ended meanwhile
            continue
    return processes
