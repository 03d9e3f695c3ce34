"""The smoke test over several hosts: network namespaces with addresses, names and process numbers of their own, and real TCP."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from provision_runtime.report import model
from tests.integration.smoke_process import FOLDER, PYTHON, TIMEOUT_S, environment, left_over

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("ip", "iptables", "unshare"))),
        reason="needs iproute2, iptables and util-linux",
    ),
]

PORT = 29517
DEADLINE_S = 6
# Rank 0 says that a phase is over as soon as all have agreed; the others then come into the next one, on a busy machine a little later.
SETTLING_S = 0.3
QUICK = ("--quick", "--backend", "gloo")
NUMBERS = itertools.count()
NAMES = Path("/etc/netns")


def sh(*arguments: str) -> None:
    subprocess.run(arguments, check=True, capture_output=True, text=True)


@dataclass
class Host:
    """A namespace with one interface, eth0, on the common bridge."""

    name: str
    address: str

    def run(self, *command: str) -> None:
        sh("ip", "netns", "exec", self.name, *command)

    # The folder of its reports, when it is not the host's own.
    folder: str = ""

    def start(
        self, out: Path, program: list[str], variables: dict[str, str], *arguments: str
    ) -> subprocess.Popen[str]:
        """A smoke test on this host, which has a name and process numbers of its own."""
        isolation = [
            "ip",
            "netns",
            "exec",
            self.name,
            "unshare",
            "--uts",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        # The shell stays process 1, which nothing within can end: torchrun's agent is an ordinary process, as under Slurm.
        named = ["sh", "-c", 'hostname "$0" && "$@"; exit $?', self.name]
        return subprocess.Popen(
            [
                *isolation,
                *named,
                PYTHON,
                *program,
                str(FOLDER),
                "smoke",
                "--out",
                str(out / (self.folder or self.name)),
                *QUICK,
                "--folder",
                str(out),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **environment(),
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": "1",
                **variables,
            },
        )


@dataclass
class Network:
    hosts: list[Host] = field(default_factory=list)

    def tell_names(self, host: Host) -> None:
        """A hosts file of its own: `ip netns exec` mounts it over /etc/hosts (ip-netns(8))."""
        (NAMES / host.name).mkdir(parents=True)
        lines = ["127.0.0.1 localhost", *(f"{other.address} {other.name}" for other in self.hosts)]
        (NAMES / host.name / "hosts").write_text("\n".join(lines) + "\n")

    def torchrun(
        self, out: Path, *arguments: str, meeting_at: int = 0
    ) -> list[subprocess.Popen[str]]:
        """One rank on each host, started as a user would: torchrun with c10d rendezvous at one of them. It numbers the hosts by their
        addresses, whichever of them that is (torch's dynamic_rendezvous.py sorts the participants)."""
        first = f"{self.hosts[meeting_at].address}:{PORT}"
        common = [
            "-m",
            "torch.distributed.run",
            "--nnodes",
            str(len(self.hosts)),
            "--nproc-per-node",
            "1",
        ]
        common += ["--rdzv-backend", "c10d", "--rdzv-endpoint", first, "--rdzv-id", "smoke"]
        return [
            host.start(out, [*common, "--local-addr", host.address], {}, *arguments)
            for host in self.hosts
        ]

    def ranks(
        self, out: Path, *arguments: str, variables: dict[int, dict[str, str]] | None = None
    ) -> list[subprocess.Popen[str]]:
        """One rank on each host, as Slurm starts them."""
        shared = {
            "MASTER_ADDR": self.hosts[0].address,
            "MASTER_PORT": str(PORT),
            "WORLD_SIZE": str(len(self.hosts)),
            "LOCAL_RANK": "0",
        }
        own = [
            {
                **shared,
                "LOCAL_WORLD_SIZE": "1",
                "RANK": str(rank),
                **(variables or {}).get(rank, {}),
            }
            for rank in range(len(self.hosts))
        ]
        return [host.start(out, [], own[rank], *arguments) for rank, host in enumerate(self.hosts)]


def lose(host: Host, how: str) -> None:
    if how == "link":
        host.run("ip", "link", "set", "eth0", "down")
    else:
        host.run("iptables", "-A", "INPUT", "-i", "eth0", "-j", "DROP")
        host.run("iptables", "-A", "OUTPUT", "-o", "eth0", "-j", "DROP")


@pytest.fixture
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    """As many hosts as the test asks for (two), on one bridge in a namespace of its own."""
    stem = f"pv{os.getpid() % 10000}{next(NUMBERS)}"
    count = getattr(request, "param", 2)
    network_ = Network([Host(f"{stem}h{index}", f"10.77.0.{index + 1}") for index in range(count)])
    switch = f"{stem}s"
    try:
        sh("ip", "netns", "add", switch)
        sh("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        sh("ip", "-n", switch, "link", "set", "bridge", "up")
        for index, host in enumerate(network_.hosts):
            network_.tell_names(host)
            sh("ip", "netns", "add", host.name)
            sh(
                "ip",
                "-n",
                switch,
                "link",
                "add",
                f"port{index}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                host.name,
            )
            sh("ip", "-n", switch, "link", "set", f"port{index}", "master", "bridge", "up")
            host.run("ip", "addr", "add", f"{host.address}/24", "dev", "eth0")
            host.run("ip", "link", "set", "eth0", "up")
            host.run("ip", "link", "set", "lo", "up")
        yield network_
    finally:
        for name in (*(host.name for host in network_.hosts), switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            shutil.rmtree(NAMES / name, ignore_errors=True)


def finish(children: list[subprocess.Popen[str]]) -> list[str]:
    try:
        return [child.communicate(timeout=TIMEOUT_S)[0] for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()


def read(out: Path, host: Host) -> model.Report:
    return model.loads((out / host.name / "report.json").read_text())


def findings(report: model.Report) -> set[tuple[str, str, tuple[int, ...]]]:
    return {
        (phase.name, finding.id, tuple(finding.ranks))
        for phase in report.phases
        for finding in phase.findings
    }


def wait_for(child: subprocess.Popen[str], text: str) -> None:
    assert child.stdout is not None
    assert any(text in line for line in child.stdout), "it ended before"
    time.sleep(SETTLING_S)


@pytest.mark.parametrize(
    "network", [2, pytest.param(4, marks=pytest.mark.exhaustive)], indirect=True
)
def test_several_hosts_pass(network: Network, tmp_path: Path) -> None:
    children = network.torchrun(tmp_path)
    outputs = finish(children)
    assert [child.returncode for child in children] == [0] * len(children), outputs
    (loaded,) = [
        read(tmp_path, host)
        for host in network.hosts
        if (tmp_path / host.name / "report.json").exists()
    ]
    assert (loaded.verdict, findings(loaded)) == ("pass", set())
    assert sorted(loaded.hosts) == [host.name for host in network.hosts]


@pytest.mark.parametrize("cut", [pytest.param("link", marks=pytest.mark.exhaustive), "iptables"])
def test_lost_link_is_named_in_time(network: Network, tmp_path: Path, cut: str) -> None:
    """slow-rank makes the phase long enough to be cut."""
    arguments = (
        "--inject",
        "slow-rank:1",
        "--only",
        "barrier",
        "--deadline",
        f"barrier={DEADLINE_S}",
    )
    children = network.ranks(tmp_path, *arguments)
    wait_for(children[0], "rendezvous")
    lose(network.hosts[1], cut)
    outputs = finish(children)
    assert all(child.returncode for child in children), outputs
    report = read(tmp_path, network.hosts[0])
    assert findings(report) == {("barrier", "rank-silent", (1,))}, outputs
    assert network.hosts[1].name in report.phases[2].message


@pytest.mark.exhaustive
def test_live_rank_behind_a_lost_link_is_known_from_the_shared_folder(
    network: Network, tmp_path: Path
) -> None:
    for host in network.hosts:
        host.folder = "shared"
    children = network.ranks(
        tmp_path,
        "--inject",
        "slow-rank:1",
        "--only",
        "barrier",
        "--deadline",
        f"barrier={DEADLINE_S}",
    )
    wait_for(children[0], "rendezvous")
    network.hosts[1].run("ip", "link", "set", "eth0", "down")
    outputs = finish(children)
    report = model.loads((tmp_path / "shared" / "report.json").read_text())
    assert findings(report) == {("barrier", "link-lost", (1,))}, outputs


@pytest.mark.exhaustive
def test_lost_link_of_the_store_host_is_named_by_both_sides(
    network: Network, tmp_path: Path
) -> None:
    children = network.ranks(
        tmp_path,
        "--inject",
        "slow-rank:1",
        "--only",
        "barrier",
        "--deadline",
        f"barrier={DEADLINE_S}",
    )
    wait_for(children[0], "rendezvous")
    network.hosts[0].run("ip", "link", "set", "eth0", "down")
    outputs = finish(children)
    for rank, host in enumerate(network.hosts):
        assert findings(read(tmp_path, host)) == {("barrier", "rank-silent", (1 - rank,))}, outputs


def test_lost_host_is_named(network: Network, tmp_path: Path) -> None:
    children = network.ranks(
        tmp_path,
        "--inject",
        "slow-rank:1",
        "--only",
        "barrier",
        "--deadline",
        f"barrier={DEADLINE_S}",
    )
    wait_for(children[0], "rendezvous")
    network.hosts[1].run("ip", "link", "set", "eth0", "down")
    children[1].kill()
    outputs = finish(children)
    assert findings(read(tmp_path, network.hosts[0])) == {("barrier", "rank-silent", (1,))}, outputs


@pytest.mark.parametrize(
    ("lost_host", "how", "meeting_at"),
    [(0, "gone", 0), (1, "link", 1), (1, "iptables", 0)],
    ids=[
        "the first host with torchrun's store",
        "another host with torchrun's store",
        "a host without a store",
    ],
)
@pytest.mark.exhaustive
def test_torchrun_ends_when_a_host_is_lost(
    network: Network, tmp_path: Path, lost_host: int, how: str, meeting_at: int
) -> None:
    """An agent that is cut off from its rendezvous' store would hang for a quarter of an hour."""
    arguments = ("--inject", "slow-rank:1", "--only", "barrier", "--deadline", "barrier=4")
    children = network.torchrun(tmp_path, *arguments, meeting_at=meeting_at)
    wait_for(children[0], "rendezvous")
    lose(network.hosts[lost_host], "link" if how == "gone" else how)
    if how == "gone":
        children[lost_host].kill()
    outputs = finish(children)
    assert all(child.returncode for child in children), outputs
    assert left_over(tmp_path) == []
    for rank in {0, 1} - ({lost_host} if how == "gone" else set()):
        report = read(tmp_path, network.hosts[rank])
        assert findings(report) == {("barrier", "rank-silent", (1 - rank,))}, outputs
        assert network.hosts[1 - rank].name in report.phases[2].findings[0].message


@pytest.mark.parametrize(
    ("verdict", "id"),
    [
        pytest.param("DROP", "store-filtered", marks=pytest.mark.exhaustive),
        ("REJECT", "store-refused"),
    ],
)
def test_blocked_port_is_reported_by_the_blocked_rank(
    network: Network, tmp_path: Path, verdict: str, id: str
) -> None:
    answer = ["--reject-with", "tcp-reset"] if verdict == "REJECT" else []
    network.hosts[0].run(
        "iptables",
        "-A",
        "INPUT",
        "-i",
        "eth0",
        "-p",
        "tcp",
        "--dport",
        str(PORT),
        "-j",
        verdict,
        *answer,
    )
    children = network.ranks(tmp_path, "--deadline", f"rendezvous={DEADLINE_S}")
    outputs = finish(children)
    assert findings(read(tmp_path, network.hosts[0])) == {("rendezvous", "rank-missing", (1,))}, (
        outputs
    )
    assert id in outputs[1], outputs[1]
    assert "rank 1" in outputs[1]


@pytest.mark.parametrize(
    ("interface", "id", "ranks"),
    [
        pytest.param("eth9", "interface-absent", (1,), marks=pytest.mark.exhaustive),
        pytest.param("lo", "interface-loopback", (1,), marks=pytest.mark.exhaustive),
        ("docker0", "peer-unreachable", (0, 1)),
    ],
)
def test_wrong_interface_is_named(
    network: Network, tmp_path: Path, interface: str, id: str, ranks: tuple[int, ...]
) -> None:
    """docker0 has an address that no other host reaches, as a second network or a container bridge has."""
    network.hosts[1].run("ip", "link", "add", "docker0", "type", "bridge")
    network.hosts[1].run("ip", "addr", "add", "192.168.99.2/24", "dev", "docker0")
    network.hosts[1].run("ip", "link", "set", "docker0", "up")
    children = network.ranks(tmp_path, variables={1: {"GLOO_SOCKET_IFNAME": interface}})
    outputs = finish(children)
    report = read(tmp_path, network.hosts[0])
    assert {(phase, name) for phase, name, _ in findings(report)} == {("rendezvous", id)}, outputs
    assert {rank for _, _, named in findings(report) for rank in named} == set(ranks)
