"""A Slurm of four nodes, n1 to n4, with two devices each that are called GPUs, for tests.

munged, slurmctld and the slurmd run for this cluster only, each slurmd on a host of its own
(`virtual_hosts`), so that host names, addresses and links are as on a real cluster. The commands
(`sinfo`, `sbatch`, ...) run on this machine with `environment`, as on a login node. Slurm's own
control groups are not used, because a container has none to give: devices are assigned and named to
jobs, but not enforced. Tasks are bound to CPUs only where a step says so (`srun --cpu-bind`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration.short_folders import short_folder
from tests.integration.virtual_hosts import VirtualHost, VirtualNetwork, output, virtual_network
from tests.integration.waiting import eventually

NODES = ("n1", "n2", "n3", "n4")
CONTROLLER = "controller"
GPUS = 2
CPUS = 4
SLURMD_PORT = 6818
# The states of a node, without the signs that sinfo appends to them.
IDLE = "idle"


@dataclass(frozen=True, kw_only=True)
class SlurmCluster:
    """folder: configuration, logs, state and devices of the cluster. controllers: munged and slurmctld."""

    network: VirtualNetwork
    folder: Path
    controllers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    slurmd: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def nodes(self) -> list[VirtualHost]:
        return [self.network[name] for name in NODES]

    def __getitem__(self, name: str) -> VirtualHost:
        return self.network[name]

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables with which Slurm's commands ask this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *words: str, check: bool = True) -> str:
        """One of Slurm's commands, run on this machine."""
        return output(*words, check=check, env={**os.environ, **self.environment})

    def states(self) -> dict[str, str]:
        """Each node's state in sinfo's words, such as idle, mixed, drained or down*."""
        lines = self.run("sinfo", "--noheader", "--Node", "-o", "%N %T").splitlines()
        return dict(line.split() for line in lines)

    def wait_for_states(self, state: str, *names: str) -> None:
        """Wait until these nodes (all of them) are in a state."""

        def is_so() -> bool:
            states = self.states()
            return all(states[name] == state for name in names or NODES)

        eventually(
            is_so,
            explain=lambda: f"{self.states()}\n{self.logs()}",
            every_s=0.1,
            daemons=[*self.controllers, *(self.slurmd[name] for name in names or NODES)],
        )

    def job_state(self, job: str) -> str:
        """COMPLETED, FAILED, RUNNING and so on."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        return dict(word.partition("=")[::2] for word in shown.split())["JobState"]

    def wait_for_job(self, job: str, state: str = "COMPLETED") -> None:
        eventually(
            lambda: self.job_state(job) == state,
            explain=lambda: f"job {job} is {self.job_state(job)}",
            every_s=0.2,
        )

    def mend(self) -> None:
        """Cancel all jobs, resume all nodes, and wait until they are idle."""
        self.run("scancel", "--user=root", "--signal=KILL", "--full")
        self.run("scancel", "--user=root")
        for name in NODES:
            if self.slurmd[name].poll() is not None:
                self.start_slurmd(name)
                self.wait_for_slurmd(name)
        for name, state in self.states().items():
            if "drain" in state or state.startswith(("down", "fail")):
                self.run("scontrol", "update", f"NodeName={name}", "State=RESUME")
        self.wait_for_states(IDLE)

    def set_options(self, *lines: str) -> None:
        """Append lines to slurm.conf for all daemons (HealthCheckProgram, Prolog, ...), or take the earlier ones out."""
        path = self.folder / "slurm.conf"
        head = path.read_text().partition(RESERVED_OPTIONS)[0]
        path.write_text(head + RESERVED_OPTIONS + "".join(f"{line}\n" for line in lines))
        self.run("scontrol", "reconfigure")

    def start_slurmd(self, name: str) -> None:
        log = self.folder / f"slurmd-{name}.log"
        self.slurmd[name] = self.network[name].start(
            "slurmd", "-D", "-f", str(self.folder / "slurm.conf"), log=log
        )

    def wait_for_slurmd(self, name: str) -> None:
        """Until the daemon listens: Slurm itself may still believe in the one that died."""
        address = (self[name].address, SLURMD_PORT)

        def listens() -> bool:
            with socket.socket() as connection:
                return connection.connect_ex(address) == 0

        eventually(listens, explain=self.logs, daemons=[self.slurmd[name]])

    def stop_slurmd(self, name: str) -> None:
        """As when the node loses its power: jobs and daemon are gone at once."""
        self.network[name].run("sh", "-c", "kill -KILL -1", check=False)
        self.slurmd[name].wait()

    def logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )


RESERVED_OPTIONS = "# Of a test:\n"
SLURM_CONF = """\
ClusterName=test
SlurmctldHost={controller}({controller_address})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
TaskPluginParam=None
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,requeue_delay=1
MpiDefault=none
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=20
SlurmdParameters=config_overrides
LaunchParameters=use_interactive_step
KillWait=2
MinJobAge=600
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
{nodes}
PartitionName=gpu Nodes=n[1-4] GraceTime=60 Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName=pair Nodes=n[1-2] MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=n[1-4] PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def start_slurm_cluster(folder: Path, gpus: int = GPUS) -> Iterator[SlurmCluster]:
    """folder: with a short path. gpus: of each node."""
    with virtual_network([CONTROLLER, *NODES], folder / "hosts") as network:
        cluster = SlurmCluster(network=network, folder=folder)
        _write_settings(cluster, gpus)
        controller = network[CONTROLLER]
        for host in network.hosts:
            # Where Slurm's commands look for it: programs that slurmd starts get no SLURM_CONF.
            conf = str(folder / "slurm.conf")
            host.run("sh", "-ec", 'mkdir -p /etc/slurm && ln -sf "$0" /etc/slurm/slurm.conf', conf)
        _start_munged(cluster)
        slurmctld = ("slurmctld", "-D", "-c", "-f", str(folder / "slurm.conf"))
        cluster.controllers.append(controller.start(*slurmctld, log=folder / "slurmctld.log"))
        for name in NODES:
            cluster.start_slurmd(name)
        _wait_for_controller(cluster)
        for name in NODES:
            cluster.wait_for_slurmd(name)
        cluster.wait_for_states(IDLE)
        yield cluster


def _write_settings(cluster: SlurmCluster, gpus: int) -> None:
    folder = cluster.folder
    (folder / "state").mkdir()
    devices = folder / "devices"
    devices.mkdir()
    for number in range(gpus):
        # Distinct devices: for one device twice slurmd counts one GPU.
        output("mknod", str(devices / f"gpu{number}"), "c", "1", str(3 + 2 * number))
    lines = [
        f"NodeName={host.name} NodeAddr={host.address} CPUs={CPUS} RealMemory=2000 "
        f"Gres=gpu:{gpus} State=UNKNOWN"
        for host in cluster.nodes
    ]
    controller = cluster.network[CONTROLLER]
    text = SLURM_CONF.format(
        folder=folder,
        controller=CONTROLLER,
        controller_address=controller.address,
        nodes="\n".join(lines),
    )
    (folder / "slurm.conf").write_text(text + RESERVED_OPTIONS)
    (folder / "gres.conf").write_text(f"Name=gpu File={devices}/gpu[0-{gpus - 1}]\n")
    (folder / "cgroup.conf").write_text(_without_control_groups(output("slurmd", "-V")))


def _without_control_groups(version: str) -> str:
    """cgroup.conf, by what `slurmd -V` prints, like `slurm-wlm 22.05.8`."""
    if int(version.split()[-1].split(".")[0]) >= 23:
        return "CgroupPlugin=disabled\n"
    return "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"


def _start_munged(cluster: SlurmCluster) -> None:
    """One munged for all hosts: its socket is a file, which namespaces of networks share."""
    folder = cluster.folder
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    controller = cluster.network[CONTROLLER]
    munged = controller.start(
        "munged", "--foreground", "--force",  # --force: the folder lies below /tmp
        f"--key-file={key}", f"--socket={folder}/munge.socket",
        f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/munge.seed",
        f"--log-file={folder}/munged.log",
        log=folder / "munged.log",
    )  # fmt: skip
    cluster.controllers.append(munged)
    eventually((folder / "munge.socket").exists, explain=cluster.logs, daemons=[munged])


def _wait_for_controller(cluster: SlurmCluster) -> None:
    eventually(
        lambda: bool(cluster.run("sinfo", "--noheader", check=False)),
        explain=cluster.logs,
        daemons=cluster.controllers,
    )


@pytest.fixture(scope="session")
def slurm_session() -> Iterator[SlurmCluster]:
    with short_folder("slurm") as folder, start_slurm_cluster(folder) as cluster:
        yield cluster


@pytest.fixture
def slurm_cluster(slurm_session: SlurmCluster) -> Iterator[SlurmCluster]:
    """The session's cluster; after the test its jobs are canceled and its nodes idle again."""
    yield slurm_session
    slurm_session.mend()
