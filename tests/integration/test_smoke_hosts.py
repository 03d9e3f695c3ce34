"""The smoke test over several hosts: network namespaces with addresses, names and process numbers of their own, and real TCP."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision_runtime.report import model
from tests.integration.smoke_process import (
    FOLDER,
    PYTHON,
    TIMEOUT_S,
    environment,
    findings_of,
    patient,
    slowness,
)
from tests.integration.virtual_hosts import (
    VirtualHost,
    VirtualNetwork,
    virtual_network,
)

pytestmark = [pytest.mark.torch, pytest.mark.hosts]

PORT = 29517
DEADLINE_S = 6
# Rank 0 says that a phase is over as soon as all have agreed; the others then come into the next one, on a busy machine a little later.
SETTLING_S = 0.3
QUICK = ("--quick", "--backend", "gloo")
# What makes a phase long enough to be cut, and ends it soon afterwards.
SLOW_BARRIER = (
    *("--inject", "slow-rank:1", "--only", "barrier"),
    *("--deadline", f"barrier={DEADLINE_S}"),
)


@pytest.fixture
def network(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VirtualNetwork]:
    """As many hosts as the test asks for (two)."""
    names = [f"h{number}" for number in range(getattr(request, "param", 2))]
    with virtual_network(names, tmp_path_factory.mktemp("hosts")) as network_:
        yield network_


def start(
    host: VirtualHost,
    out: Path,
    program: list[str],
    variables: dict[str, str],
    *arguments: str,
) -> subprocess.Popen[str]:
    """A smoke test on this host. out: the folder with a folder of reports for each host."""
    command = [PYTHON, *program, str(FOLDER), "smoke", *QUICK]
    if "--out" not in arguments:
        command += ["--out", str(out / host.name)]
    return subprocess.Popen(
        host.command(*command, "--folder", str(out), *arguments),
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


def start_with_torchrun(
    network: VirtualNetwork, out: Path, *arguments: str
) -> list[subprocess.Popen[str]]:
    """One rank on each host, started as a user would: torchrun with c10d rendezvous at the first. It numbers the hosts by their
    addresses, whichever of them that is (torch's dynamic_rendezvous.py sorts the participants)."""
    program = ["-m", "torch.distributed.run", "--nproc-per-node", "1"]
    program += ["--nnodes", str(len(network.hosts)), "--rdzv-backend", "c10d", "--rdzv-id", "smoke"]
    program += ["--rdzv-endpoint", f"{network.hosts[0].address}:{PORT}"]
    return [
        start(host, out, [*program, "--local-addr", host.address], {}, *arguments)
        for host in network.hosts
    ]


def start_ranks(
    network: VirtualNetwork,
    out: Path,
    *arguments: str,
    variables: dict[int, dict[str, str]] | None = None,
    per_host: int = 1,
) -> list[subprocess.Popen[str]]:
    """As many ranks on each host, as Slurm starts them."""
    world_size = len(network.hosts) * per_host
    shared = {
        "MASTER_ADDR": network.hosts[0].address,
        "MASTER_PORT": str(PORT),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(per_host),
    }
    patient_arguments = patient(arguments)
    children = []
    for rank in range(world_size):
        host_number, local_rank = divmod(rank, per_host)
        own = {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}
        own.update((variables or {}).get(rank, {}))
        host = network.hosts[host_number]
        children.append(start(host, out, [], {**shared, **own}, *patient_arguments))
    return children


def lose(host: VirtualHost, how: str) -> None:
    if how == "link":
        host.run("ip", "link", "set", "eth0", "down")
    else:
        host.run("iptables", "-A", "INPUT", "-i", "eth0", "-j", "DROP")
        host.run("iptables", "-A", "OUTPUT", "-o", "eth0", "-j", "DROP")


def finish(children: list[subprocess.Popen[str]]) -> list[str]:
    try:
        return [child.communicate(timeout=TIMEOUT_S * slowness())[0] for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()


def read(out: Path, host: VirtualHost) -> model.Report:
    return model.loads((out / host.name / "report.json").read_text())


def wait_for(child: subprocess.Popen[str], text: str) -> None:
    assert child.stdout is not None
    assert any(text in line for line in child.stdout), "it ended before"
    time.sleep(SETTLING_S)


@pytest.mark.parametrize("network", [2, 4], indirect=True)
def test_several_hosts_pass(network: VirtualNetwork, tmp_path: Path) -> None:
    children = start_with_torchrun(network, tmp_path)
    outputs = finish(children)
    assert [child.returncode for child in children] == [0] * len(children), outputs
    (loaded,) = [
        read(tmp_path, host)
        for host in network.hosts
        if (tmp_path / host.name / "report.json").exists()
    ]
    assert (loaded.verdict, findings_of(loaded)) == ("pass", set())
    assert sorted(loaded.hosts) == [host.name for host in network.hosts]


@pytest.mark.exhaustive
@pytest.mark.parametrize("cut", [pytest.param("link", marks=pytest.mark.exhaustive), "iptables"])
def test_lost_link_is_named_in_time(network: VirtualNetwork, tmp_path: Path, cut: str) -> None:
    children = start_ranks(network, tmp_path, *SLOW_BARRIER)
    wait_for(children[0], "rendezvous")
    lose(network.hosts[1], cut)
    outputs = finish(children)
    assert all(child.returncode for child in children), outputs
    report = read(tmp_path, network.hosts[0])
    assert findings_of(report) == {("barrier", "rank-silent", (1,))}, outputs
    assert network.hosts[1].name in report.phases[2].message
    # The other side says on its own terminal what it saw.
    assert "fail     barrier" in outputs[1]
    assert f"on {network.hosts[0].name}" in outputs[1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("cut", ["link", "iptables"])
@pytest.mark.parametrize("shared", [False, True])
def test_one_rank_behind_a_lost_link_says_what_it_saw(
    network: VirtualNetwork, tmp_path: Path, cut: str, shared: bool
) -> None:
    """Two ranks on each host: neither rank 0 nor the one next to it is behind the lost link. shared: the
    hosts have one folder of reports."""
    reports = ("--out", str(tmp_path / "shared")) if shared else ()
    children = start_ranks(network, tmp_path, *SLOW_BARRIER, *reports, per_host=2)
    wait_for(children[0], "rendezvous")
    lose(network.hosts[1], cut)
    outputs = finish(children)
    assert all(child.returncode for child in children), outputs
    saying = [output for output in outputs[2:] if "fail     barrier" in output]
    assert len(saying) == 1, outputs
    assert network.hosts[0].name in saying[0] or network.hosts[1].name in saying[0], outputs


@pytest.mark.exhaustive
def test_the_far_side_of_a_lost_link_does_not_replace_the_report(
    network: VirtualNetwork, tmp_path: Path
) -> None:
    out = tmp_path / "shared"
    children = start_ranks(network, tmp_path, *SLOW_BARRIER, "--out", str(out))
    wait_for(children[0], "rendezvous")
    network.hosts[1].run("ip", "link", "set", "eth0", "down")
    outputs = finish(children)
    assert f"{network.hosts[1].name} no longer reaches the store" in outputs[1]
    report = model.loads((out / "report.json").read_text())
    assert findings_of(report) == {("barrier", "rank-silent", (1,))}, outputs


@pytest.mark.exhaustive
def test_lost_link_of_the_store_host_is_named_by_both_sides(
    network: VirtualNetwork, tmp_path: Path
) -> None:
    children = start_ranks(network, tmp_path, *SLOW_BARRIER)
    wait_for(children[0], "rendezvous")
    network.hosts[0].run("ip", "link", "set", "eth0", "down")
    outputs = finish(children)
    for rank, host in enumerate(network.hosts):
        assert findings_of(read(tmp_path, host)) == {("barrier", "rank-silent", (1 - rank,))}, (
            outputs
        )


@pytest.mark.exhaustive
def test_lost_host_is_named(network: VirtualNetwork, tmp_path: Path) -> None:
    children = start_ranks(network, tmp_path, *SLOW_BARRIER)
    wait_for(children[0], "rendezvous")
    network.hosts[1].run("ip", "link", "set", "eth0", "down")
    network.hosts[1].kill()
    outputs = finish(children)
    assert findings_of(read(tmp_path, network.hosts[0])) == {("barrier", "rank-silent", (1,))}, (
        outputs
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("verdict", "id"),
    [
        ("DROP", "store-filtered"),
        ("REJECT", "store-refused"),
    ],
)
def test_blocked_port_is_reported_by_the_blocked_rank(
    network: VirtualNetwork, tmp_path: Path, verdict: str, id: str
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
    children = start_ranks(network, tmp_path, "--deadline", f"rendezvous={DEADLINE_S}")
    outputs = finish(children)
    assert findings_of(read(tmp_path, network.hosts[0])) == {
        ("rendezvous", "rank-missing", (1,))
    }, outputs
    assert id in outputs[1], outputs[1]
    assert "rank 1" in outputs[1]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("interface", "id", "ranks"),
    [
        ("eth9", "interface-absent", (1,)),
        ("lo", "interface-loopback", (1,)),
        ("docker0", "peer-unreachable", (0, 1)),
    ],
)
def test_wrong_interface_is_named(
    network: VirtualNetwork, tmp_path: Path, interface: str, id: str, ranks: tuple[int, ...]
) -> None:
    """docker0 has an address that no other host reaches, as a second network or a container bridge has."""
    network.hosts[1].run("ip", "link", "add", "docker0", "type", "bridge")
    network.hosts[1].run("ip", "addr", "add", "192.168.99.2/24", "dev", "docker0")
    network.hosts[1].run("ip", "link", "set", "docker0", "up")
    children = start_ranks(network, tmp_path, variables={1: {"GLOO_SOCKET_IFNAME": interface}})
    outputs = finish(children)
    report = read(tmp_path, network.hosts[0])
    assert {(phase, name) for phase, name, _ in findings_of(report)} == {("rendezvous", id)}, (
        outputs
    )
    assert {rank for _, _, named in findings_of(report) for rank in named} == set(ranks)
