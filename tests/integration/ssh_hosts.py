"""Eight hosts that answer ssh, for tests: h1 to h8.

The caller's `~/.ssh` is neither read nor written: keys, known hosts and configuration lie in the
cluster's folder, and `ssh` on the PATH of `environment` reads that configuration.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.short_folders import short_folder
from tests.integration.virtual_hosts import VirtualHost, VirtualNetwork, output, virtual_network
from tests.integration.waiting import eventually
from tests.programs import write_program

HOSTS = tuple(f"h{number}" for number in range(1, 9))


@dataclass(frozen=True, kw_only=True)
class SshHosts:
    """config: the ssh configuration, in which every host has its address, the user and the keys."""

    network: VirtualNetwork
    config: Path

    @property
    def names(self) -> list[str]:
        return [host.name for host in self.network.hosts]

    def __getitem__(self, name: str) -> VirtualHost:
        return self.network[name]

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables with which every program that calls `ssh` knows these hosts."""
        return {
            "PATH": f"{self.config.parent / 'bin'}:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        }

    @property
    def ssh_options(self) -> tuple[str, ...]:
        return ("-F", str(self.config))

    def run(self, name: str, command: str) -> str:
        return output("ssh", *self.ssh_options, name, command)

    def start_sshd(self, host: VirtualHost) -> None:
        """Start the host's sshd and wait until it listens; also after `stop_sshd`."""
        config = self.config.parent / f"sshd_{host.name}"
        log = self.config.parent / f"sshd_{host.name}.log"
        sshd = host.start("/usr/sbin/sshd", "-D", "-e", "-f", str(config), log=log)
        eventually(
            lambda: "Server listening" in log.read_text(), explain=log.read_text, daemons=[sshd]
        )

    def stop_sshd(self, host: VirtualHost) -> None:
        """End the host's sshd and its sessions; connections are refused then."""
        host.run("sh", "-c", "kill -KILL -1", check=False)
        (self.config.parent / f"sshd_{host.name}.log").write_text("")


@contextlib.contextmanager
def start_ssh_hosts(folder: Path, names: tuple[str, ...] = HOSTS) -> Iterator[SshHosts]:
    """folder: with a short path."""
    with virtual_network(names, folder / "hosts") as network:
        yield let_in(network, folder / "ssh")


def let_in(network: VirtualNetwork, folder: Path) -> SshHosts:
    """Let all hosts of a network answer ssh. Keys and configuration go into the folder."""
    (folder / "bin").mkdir(parents=True)
    hosts = SshHosts(network=network, config=folder / "config")
    _write_keys(hosts)
    _write_client_settings(hosts)
    for host in network.hosts:
        _write_server_settings(hosts, host)
        hosts.start_sshd(host)
    return hosts


def _write_keys(hosts: SshHosts) -> None:
    """The user's key, and one for each host."""
    for name in ("user", *hosts.names):
        path = hosts.config.parent / f"key_{name}"
        output("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path))
    public = (hosts.config.parent / "key_user.pub").read_text()
    (hosts.config.parent / "authorized_keys").write_text(public)


def _write_client_settings(hosts: SshHosts) -> None:
    folder = hosts.config.parent
    known_hosts = ""
    blocks = []
    for host in hosts.network.hosts:
        key = (folder / f"key_{host.name}.pub").read_text()
        known_hosts += f"{host.name},{host.address} {key}"
        blocks += [f"Host {host.name}", f"  HostName {host.address}", f"  HostKeyAlias {host.name}"]
    blocks += [
        "Host *",
        "  User root",
        f"  IdentityFile {folder}/key_user",
        "  IdentitiesOnly yes",
        f"  UserKnownHostsFile {folder}/known_hosts",
        "  GlobalKnownHostsFile /dev/null",
        "  LogLevel ERROR",
    ]
    (folder / "known_hosts").write_text(known_hosts)
    hosts.config.write_text("\n".join(blocks) + "\n")
    for tool in ("ssh", "scp", "sftp"):
        wrapper = folder / "bin" / tool
        options = f"-F {shlex.quote(str(hosts.config))}"
        write_program(wrapper, f'#!/bin/sh\nexec {shutil.which(tool)} {options} "$@"\n')


def _write_server_settings(hosts: SshHosts, host: VirtualHost) -> None:
    folder = hosts.config.parent
    lines = [
        f"ListenAddress {host.address}",
        f"HostKey {folder}/key_{host.name}",
        f"AuthorizedKeysFile {folder}/authorized_keys",
        "PermitRootLogin prohibit-password",
        "PasswordAuthentication no",
        "StrictModes no",  # the keys lie below /tmp
        "UsePAM no",
        "UseDNS no",
        "MaxStartups 200",
        "MaxSessions 200",
        "Subsystem sftp internal-sftp",
    ]
    (folder / f"sshd_{host.name}").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def ssh_hosts() -> Iterator[SshHosts]:
    """h1 to h8, for all tests; a test that breaks a host mends it."""
    with short_folder("ssh") as folder, start_ssh_hosts(folder) as hosts:
        yield hosts
