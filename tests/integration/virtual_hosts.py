"""Hosts for the test clusters: namespaces on one bridge, which this machine reaches too.

Each host has an address, a name, process numbers, `/etc`, `/opt`, `/run` and a home of its own; the
rest of the file system is this machine's. Nothing has a name outside, and all processes are in one
process namespace, whose first process dies with the test process. So the kernel removes processes,
interfaces and mounts, even after a `kill -9`. The bridge lies in a namespace of its own, because
the firewall of this machine would filter what a bridge forwards (Docker drops it).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import HOSTS

# Of the addresses for benchmarks of networks (RFC 2544), which nobody routes.
SUBNETS = [f"198.{second}.{third}" for second in (18, 19) for third in range(256)]
# SIGCHLD stays ignored over exec: the kernel then reaps the processes that it inherits.
FIRST_PROCESS = ("sh", "-c", "trap '' CHLD; echo ready; exec sleep infinity")
GATEWAY = 254


class HostsUnavailable(Exception):
    """This machine cannot make such hosts, and why."""


def why_impossible(*tools: str) -> str | None:
    """Why hosts with these tools cannot be made here; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in (*HOSTS, *tools) if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    tried = subprocess.run([*_unshare("--net"), "true"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


@dataclass(frozen=True, kw_only=True)
class VirtualHost:
    """One host. folder: its private files; `opt` in it is the host's `/opt`. port: its interface at the
    bridge. children: what was started for any of the hosts, to be waited for at the end."""

    name: str
    address: str
    pid: int
    folder: Path
    port: str
    children: list[subprocess.Popen[Any]]

    def command(self, *words: str) -> list[str]:
        """The command that runs these words on the host."""
        return ["nsenter", "--all", "--target", str(self.pid), "--", *words]

    def run(self, *words: str, check: bool = True) -> str:
        return output(*self.command(*words), check=check)

    def start(self, *words: str, log: Path) -> subprocess.Popen[bytes]:
        """A process on the host that stays; it ends with the host."""
        with log.open("ab") as file:
            child = subprocess.Popen(
                self.command(*words), stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        self.children.append(child)
        return child

    def kill(self) -> None:
        """End all processes of the host at once, as when it loses its power."""
        os.kill(self.pid, signal.SIGKILL)


@dataclass
class VirtualNetwork:
    """The hosts, the namespace of their bridge, and the address of this machine among them."""

    folder: Path
    subnet: str = ""
    bridge: int = 0
    hosts: list[VirtualHost] = field(default_factory=list)
    children: list[subprocess.Popen[Any]] = field(default_factory=list)

    def __getitem__(self, name: str) -> VirtualHost:
        return next(host for host in self.hosts if host.name == name)

    @property
    def gateway(self) -> str:
        """The address of this machine."""
        return f"{self.subnet}.{GATEWAY}"

    def on_bridge(self, *words: str, check: bool = True) -> str:
        return output("nsenter", "--net", "--target", str(self.bridge), "--", *words, check=check)

    def cut(self, host: VirtualHost) -> None:
        """Take the host off the network; its processes go on."""
        self.on_bridge("ip", "link", "set", host.port, "down")

    def heal(self, host: VirtualHost) -> None:
        self.on_bridge("ip", "link", "set", host.port, "up")

    @contextlib.contextmanager
    def broken_link(self, one: VirtualHost, other: VirtualHost) -> Iterator[None]:
        """Drop what two hosts send each other; both still reach all others."""
        rules = [
            (host, ["INPUT", "--source", peer.address, "--jump", "DROP"])
            for host, peer in ((one, other), (other, one))
        ]
        for host, rule in rules:
            host.run("iptables", "--append", *rule)
        try:
            yield
        finally:
            for host, rule in rules:
                host.run("iptables", "--delete", *rule)


def output(*words: str, check: bool = True, env: Mapping[str, str] | None = None) -> str:
    result = subprocess.run(words, capture_output=True, text=True, env=env)
    if check and result.returncode != 0:
        raise AssertionError(
            f"{' '.join(words)} ended with status {result.returncode}: {result.stderr}"
        )
    return result.stdout


@contextlib.contextmanager
def virtual_network(names: Sequence[str], folder: Path) -> Iterator[VirtualNetwork]:
    """Hosts of these names, whose private files lie in the folder."""
    network = VirtualNetwork(folder)
    try:
        # The first process of all hosts dies with us, and everything in its namespace with it.
        network.bridge = _start_first_process(network, "setpriv", "--pdeathsig", "KILL")
        network.on_bridge("ip", "link", "add", "bridge", "type", "bridge")
        network.on_bridge("ip", "link", "set", "bridge", "up")
        network.subnet = _join_this_machine(network)
        for number, name in enumerate(names, start=1):
            network.hosts.append(_make_host(network, number, name))
        for host in network.hosts:
            _write_names(network, host)
        yield network
    finally:
        if network.bridge:
            os.kill(network.bridge, signal.SIGKILL)
        for child in network.children:
            child.communicate()


def _unshare(*namespaces: str) -> list[str]:
    words = ["unshare", "--mount", "--uts", "--ipc", *namespaces]
    return [*words, "--pid", "--fork", "--kill-child", "--mount-proc"]


def _start_first_process(network: VirtualNetwork, *prefix: str) -> int:
    """Make namespaces; the number, here, of the process that keeps them."""
    starter = subprocess.Popen(
        [*prefix, *_unshare("--net"), *FIRST_PROCESS],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # unshare complains about the signals that end it
        text=True,
    )
    network.children.append(starter)
    assert starter.stdout is not None
    if starter.stdout.readline() != "ready\n":
        raise HostsUnavailable("namespaces cannot be made here")
    # nsenter, unshare and the process itself: each is the only child of the one before.
    pid = starter.pid
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    return pid


def _join_this_machine(network: VirtualNetwork) -> str:
    """Connect this machine with the bridge, on a subnet that no other test run has."""
    device = f"pv{network.bridge}"
    output(
        "ip", "link", "add", device, "type", "veth",
        "peer", "name", "gateway", "netns", str(network.bridge),
    )  # fmt: skip
    network.on_bridge("ip", "link", "set", "gateway", "master", "bridge", "up")
    output("ip", "link", "set", device, "up")
    start = network.bridge % len(SUBNETS)
    for subnet in itertools.chain(SUBNETS[start:], SUBNETS[:start]):
        # The kernel refuses a second route to the same subnet: whose route it is has the subnet.
        route = ["ip", "route", "add", f"{subnet}.0/24", "dev", device]
        if subprocess.run(route, capture_output=True).returncode == 0:
            output("ip", "addr", "add", f"{subnet}.{GATEWAY}/32", "dev", device)
            output(
                "ip",
                "route",
                "change",
                f"{subnet}.0/24",
                "dev",
                device,
                "src",
                f"{subnet}.{GATEWAY}",
            )
            return subnet
    raise HostsUnavailable("all subnets for test networks are taken")


def _make_host(network: VirtualNetwork, number: int, name: str) -> VirtualHost:
    folder = network.folder / name
    for private in ("opt", "etc", "home"):
        (folder / private).mkdir(parents=True)
    pid = _start_first_process(network, "nsenter", "--pid", "--target", str(network.bridge), "--")
    port = f"port{number}"
    address = f"{network.subnet}.{number}"
    network.on_bridge(
        "ip",
        "link",
        "add",
        port,
        "type",
        "veth",
        "peer",
        "name",
        "eth0",
        "netns",
        f"/proc/{pid}/ns/net",
    )
    network.on_bridge("ip", "link", "set", port, "master", "bridge", "up")
    host = VirtualHost(
        name=name, address=address, pid=pid, folder=folder, port=port, children=network.children
    )
    host.run("sh", "-ec", HOST_SETUP, name, str(folder), address)
    return host


# The private /etc is a file system in memory over the machine's: an overlay needs one that is no
# overlay itself, and a container's root is one.
HOST_SETUP = """
hostname "$0"
ip addr add "$2/24" dev eth0
ip link set eth0 up
ip link set lo up
mount -t tmpfs -o mode=755,size=16m none "$1/etc"
mkdir "$1/etc/upper" "$1/etc/work"
mount -t overlay -o "lowerdir=/etc,upperdir=$1/etc/upper,workdir=$1/etc/work" none /etc
mount --bind "$1/opt" /opt
sed -i "s#:/root:#:$1/home:#" /etc/passwd
mount -t tmpfs -o mode=755,size=16m none /run
mkdir -p /run/sshd
"""


def _write_names(network: VirtualNetwork, host: VirtualHost) -> None:
    """The host's own hosts file, host name and machine id."""
    lines = ["127.0.0.1 localhost", f"{network.gateway} gateway"]
    lines += [f"{other.address} {other.name}" for other in network.hosts]
    hosts = "\n".join(lines)
    machine_id = uuid.uuid5(uuid.NAMESPACE_DNS, host.name).hex
    script = 'echo "$0" >/etc/hosts; echo "$1" >/etc/hostname; rm -f /etc/machine-id; echo "$2" >/etc/machine-id'
    host.run("sh", "-ec", script, hosts, host.name, machine_id)
