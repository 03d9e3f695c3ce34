"""Real hosts that are dead, hung, unreachable, strange, without Python, full or read-only."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Home, make_home
from tests.integration.slurm_cluster import SlurmCluster
from tests.integration.ssh_hosts import HOSTS, SshHosts
from tests.programs import write_program
from tests.results import parse_result

pytestmark = pytest.mark.sshd
CONNECT_S = 3
OLD_PYTHONS = sorted(Path.home().glob(".pyenv/versions/3.[67].*/bin/python3"))


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return make_home(tmp_path_factory.mktemp("user"))


def check(user: Home, hosts: SshHosts, on: str = "h[1-8]") -> dict[str, dict[str, Any]]:
    """Each node of the report by its name."""
    path = f"{hosts.environment['PATH']}:{user.env['PATH']}"
    inventory = user.root / "nodes.yml"
    inventory.write_text(f"schema: 1\ndefaults: {{connect_s: {CONNECT_S}}}\n")
    words = ("--on", on, "--inventory", str(inventory))
    result = user.run("nodes", "check", *words, "--json", PATH=path)
    document = parse_result(result.stdout)
    assert result.returncode == (0 if document["is_fit"] else 1)
    return {each["name"]: each for each in document["nodes"]}


def reasons(report: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Of the nodes that are not fit."""
    return {
        name: [problem["reason"] for problem in each["problems"]]
        for name, each in report.items()
        if each["verdict"] != "fit"
    }


@contextlib.contextmanager
def mounted(hosts: SshHosts | SlurmCluster, name: str, point: str, *words: str) -> Iterator[None]:
    """A mount over a folder or file of one host."""
    hosts[name].run("mount", *words, point)
    try:
        yield
    finally:
        hosts[name].run("umount", "--lazy", point)


@contextlib.contextmanager
def edited(path: Path, text: str) -> Iterator[None]:
    before = path.read_text()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(before)


def test_eight_hosts_are_fit(user: Home, ssh_hosts: SshHosts) -> None:
    report = check(user, ssh_hosts)
    assert reasons(report) == {}
    assert [each["facts"]["host"]["name"] for each in report.values()] == list(HOSTS)
    assert [each["facts"]["host"]["addresses"] for each in report.values()] == [
        [ssh_hosts[name].address] for name in HOSTS
    ]


@pytest.mark.needs("pkill")
def test_dead_refused_hung_and_unreachable_hosts_are_told_apart(
    user: Home, ssh_hosts: SshHosts
) -> None:
    stopped, hung, cut, silent = (ssh_hosts[name] for name in ("h1", "h2", "h3", "h4"))
    drop = ("INPUT", "--protocol", "tcp", "--dport", "22", "--jump", "DROP")
    reject = ("INPUT", "--protocol", "tcp", "--dport", "22", "--jump", "REJECT")
    ssh_hosts.stop_sshd(stopped)
    hung.run("pkill", "-STOP", "-x", "sshd")
    ssh_hosts.network.cut(cut)
    silent.run("iptables", "--append", *drop)
    ssh_hosts["h5"].run("iptables", "--append", *reject, "--reject-with", "icmp-host-unreachable")
    try:
        report = check(user, ssh_hosts, "h[1-8],no-such-host")
    finally:
        ssh_hosts.start_sshd(stopped)
        _continue_sshd(ssh_hosts, "h2")
        ssh_hosts.network.heal(cut)
        silent.run("iptables", "--delete", *drop)
        ssh_hosts["h5"].run(
            "iptables", "--delete", *reject, "--reject-with", "icmp-host-unreachable"
        )
    assert reasons(report) == {
        "h1": ["refused"],
        "h2": ["hung"],
        "h3": ["connect-timeout"],
        "h4": ["connect-timeout"],
        "h5": ["unreachable"],
        "no-such-host": ["unresolvable"],
    }
    assert reasons(check(user, ssh_hosts)) == {}


def _continue_sshd(hosts: SshHosts, name: str) -> None:
    """nsenter stops itself when its child stops."""
    for child in hosts[name].children:
        os.kill(child.pid, signal.SIGCONT)
    hosts[name].run("pkill", "-CONT", "-x", "sshd")


def test_unknown_and_changed_host_keys(user: Home, ssh_hosts: SshHosts) -> None:
    known_hosts = ssh_hosts.config.parent / "known_hosts"
    keys = dict(line.split(maxsplit=1) for line in known_hosts.read_text().splitlines())
    del keys[f"h1,{ssh_hosts['h1'].address}"]
    keys[f"h2,{ssh_hosts['h2'].address}"] = keys[f"h3,{ssh_hosts['h3'].address}"]
    trusted = "".join(f"{names} {key}\n" for names, key in keys.items())
    with edited(known_hosts, trusted):
        report = check(user, ssh_hosts, "h[1-4]")
        assert known_hosts.read_text() == trusted
    assert reasons(report) == {"h1": ["host-key-unknown"], "h2": ["host-key-changed"]}
    assert "h2" in report["h2"]["problems"][0]["message"]


def test_password_is_never_asked_for(user: Home, ssh_hosts: SshHosts) -> None:
    with edited(ssh_hosts.config.parent / "authorized_keys", ""):
        report = check(user, ssh_hosts, "h[1-2]")
    assert reasons(report) == {"h1": ["login-refused"], "h2": ["login-refused"]}
    assert "Permission denied" in report["h1"]["problems"][0]["message"]


def test_host_without_python(user: Home, ssh_hosts: SshHosts) -> None:
    python = ssh_hosts.run("h1", "readlink -f $(which python3)").strip()
    with mounted(ssh_hosts, "h1", python, "--bind", "/dev/null"):
        assert reasons(check(user, ssh_hosts, "h[1-2]")) == {"h1": ["no-python"]}


@pytest.mark.skipif(not OLD_PYTHONS, reason="there is no Python older than 3.8 to try")
def test_host_with_an_old_python(user: Home, ssh_hosts: SshHosts, tmp_path: Path) -> None:
    write_program(tmp_path / "python3", f'#!/bin/sh\nexec {OLD_PYTHONS[0]} "$@"\n')
    with mounted(ssh_hosts, "h1", "/usr/local/bin", "--bind", str(tmp_path)):
        report = check(user, ssh_hosts, "h[1-2]")
    assert reasons(report) == {"h1": ["python-too-old"]}
    assert "is Python 3." in report["h1"]["problems"][0]["message"]


def test_full_inodeless_read_only_noexec_and_open_stores(user: Home, ssh_hosts: SshHosts) -> None:
    with contextlib.ExitStack() as stack:
        for name, options in {
            "h1": "mode=755,size=64k",
            "h2": "mode=755,nr_inodes=2",
            "h3": "mode=755,ro",
            "h4": "mode=755,noexec",
            "h5": "mode=1777",
        }.items():
            ssh_hosts[name].run("mkdir", "-p", "/opt/provision")
            tmpfs = ("--types", "tmpfs", "--options", options, "none")
            stack.enter_context(mounted(ssh_hosts, name, "/opt/provision", *tmpfs))
        ssh_hosts["h1"].run("sh", "-c", "cat /dev/zero >/opt/provision/big", check=False)
        ssh_hosts["h2"].run("touch", "/opt/provision/last", check=False)
        report = check(user, ssh_hosts)
    assert reasons(report) == {
        "h1": ["disk-full"],
        "h2": ["no-inodes"],
        "h3": ["read-only"],
        "h4": ["no-exec"],
        "h5": ["unsafe-store"],
    }


def test_own_name_that_does_not_resolve(user: Home, ssh_hosts: SshHosts) -> None:
    ssh_hosts["h1"].run("hostname", "nobody-knows-me")
    ssh_hosts["h2"].run(
        "sh", "-c", "cp /etc/hosts /run/hosts; sed -i 's/.* h2$/127.0.1.1 h2/' /etc/hosts"
    )
    try:
        report = check(user, ssh_hosts, "h[1-3]")
    finally:
        ssh_hosts["h1"].run("hostname", "h1")
        ssh_hosts["h2"].run("sh", "-c", "cat /run/hosts >/etc/hosts")
    assert reasons(report) == {"h1": ["no-own-name"]}
    assert [warning["reason"] for warning in report["h2"]["warnings"]] == ["loopback-name"]


def test_host_under_two_names_is_used_once(user: Home, ssh_hosts: SshHosts) -> None:
    alias = (
        f"Host login\n  HostName {ssh_hosts['h1'].address}\n  HostKeyAlias h1\n"
        + ssh_hosts.config.read_text()
    )
    with edited(ssh_hosts.config, alias):
        report = check(user, ssh_hosts, "h[1-2],login")
    assert reasons(report) == {"login": ["same-node"]}
    assert report["login"]["problems"][0]["message"] == "login and h1 are the same machine"


def test_noisy_shells_do_no_harm(user: Home, ssh_hosts: SshHosts) -> None:
    """A start file that prints, as labs have them."""
    home = ssh_hosts.run("h1", "echo $HOME").strip()
    bashrc = f"{home}/.bashrc"
    ssh_hosts["h1"].run("sh", "-c", f"printf 'printf \"Welcome to the lab\"\\n' >{bashrc}")
    try:
        assert "Welcome" in ssh_hosts.run("h1", "true")
        assert reasons(check(user, ssh_hosts, "h[1-2]")) == {}
    finally:
        ssh_hosts["h1"].run("rm", bashrc)


def test_group_of_nodes_yml_with_its_ssh_configuration(user: Home, ssh_hosts: SshHosts) -> None:
    inventory = user.envs.parent / "nodes.yml"
    inventory.write_text(
        "schema: 1\ngroups:\n  desks: {from: ssh, hosts: 'h[1-3]'}\n"
        f"defaults: {{ssh_options: [-F, {ssh_hosts.config}]}}\n"
    )
    try:
        result = user.run("nodes", "check", "--on", "desks!h2")
    finally:
        inventory.unlink()
    assert result.returncode == 0
    assert result.stdout.startswith("h[1,3]  fit: ")
