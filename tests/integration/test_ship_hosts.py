"""A small environment shipped to eight hosts by ssh: mounted there, killed and resumed, switched."""

from __future__ import annotations

import json
import random
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from provision.cluster import pack as packs
from provision.cluster.pack import Pack
from provision.core.paths import Folders
from tests.integration.conftest import Home, make_home
from tests.integration.shipped_packs import write_pack
from tests.integration.ssh_hosts import HOSTS, SshHosts
from tests.results import parse_result

pytestmark = [pytest.mark.sshd, pytest.mark.needs("mksquashfs")]
STORE = PurePosixPath("/opt/provision")
NAME = "small"
ON = "h[1-8]"
# One that serves the image, and one that fetches it: more would only take longer.
TWO = "h[1-2]"
TWO_HOSTS = ("h1", "h2")


class Lab:
    """A user, eight hosts, and what their stores hold."""

    def __init__(self, home: Home, hosts: SshHosts) -> None:
        self.home, self.hosts = home, hosts

    @property
    def data(self) -> Path:
        return self.home.project

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return self.home.start(*arguments, **self.hosts.environment)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.home.run(*arguments, timeout_s=300, **dict(self.hosts.environment))

    def report(self, *arguments: str) -> dict[str, Any]:
        result = self.run(*arguments, "--json")
        assert result.returncode in (0, 1), result.stderr
        document = parse_result(result.stdout)
        assert isinstance(document, dict)
        return document

    def active(self, names: Sequence[str] = HOSTS) -> dict[str, str]:
        """What these hosts' jobs would start in; empty where its Python does not start."""
        script = f"cd {STORE} && {NAME}/bin/python -I -c '' && readlink {NAME}"
        return {
            name: self.hosts[name].run("sh", "-c", script, check=False).strip() for name in names
        }

    def empty(self) -> None:
        script = f"umount {STORE}/envs/*/ 2>/dev/null; rm -rf {STORE}"
        for name in HOSTS:
            self.hosts[name].run("sh", "-c", script)


@pytest.fixture
def lab(ssh_hosts: SshHosts, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(make_home(tmp_path), ssh_hosts)
    lab.empty()
    yield lab
    lab.empty()


def reasons(report: dict[str, Any]) -> set[str]:
    return {row["reason"] for row in report["nodes"].values() if "reason" in row}


def states(report: dict[str, Any]) -> dict[str, str]:
    return {name: row["state"] for name, row in report["nodes"].items()}


@pytest.mark.exhaustive
def test_ship_switch_and_roll_back_under_a_running_job(lab: Lab) -> None:
    first = write_pack(lab.data, NAME, "1", STORE)
    report = lab.report("ship", NAME, "--on", ON)
    assert set(states(report).values()) == {"active"}
    assert {row["method"] for row in report["nodes"].values()} == {"kernel"}
    assert report["sent_bytes"] == first["size"]
    assert report["copies_between_nodes"] == 7
    assert set(lab.active().values()) == {f"envs/{first['key']}"}

    report = lab.report("ship", NAME, "--on", ON)
    assert report["succeeded"]
    assert report["sent_bytes"] == report["copies_between_nodes"] == 0

    job_script = f"echo $$ >/run/job; cd {STORE}/{NAME}/bin && echo started && exec sleep 600"
    job = subprocess.Popen(
        lab.hosts["h1"].command("sh", "-c", job_script), stdout=subprocess.PIPE, text=True
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "started\n"
    try:
        later = [write_pack(lab.data, NAME, version, STORE, 100_000) for version in "234"]
        # Each is the latest in its turn: the files' times say so.
        for document in later:
            sidecar = lab.data / "packs" / NAME / f"{document['key']}.json"
            sidecar.touch()
            report = lab.report("ship", NAME, "--on", TWO)
            assert set(states(report).values()) == {"active"}
        removed = {name: row["removed"] for name, row in report["nodes"].items()}
        assert removed.pop("h1") == []
        assert report["nodes"]["h1"]["in_use"] == [first["key"]]
        assert set(map(tuple, removed.values())) == {(first["key"],)}
        assert job.poll() is None
        report = lab.report("rollback", NAME, "--on", TWO)
        assert set(states(report).values()) == {"active"}
        assert set(lab.active(TWO_HOSTS).values()) == {f"envs/{later[1]['key']}"}
        assert lab.active(("h8",))["h8"] == f"envs/{first['key']}"
    finally:
        lab.hosts["h1"].run("sh", "-c", "kill -KILL $(cat /run/job)")
        job.communicate()


def test_a_host_that_was_restarted_is_mounted_again_and_nothing_is_sent(lab: Lab) -> None:
    write_pack(lab.data, NAME, "1", STORE, 100_000)
    assert lab.report("ship", NAME, "--on", TWO)["succeeded"]
    lab.hosts["h2"].run("sh", "-c", f"umount {STORE}/envs/*/")
    active = lab.active(TWO_HOSTS)
    assert active["h2"] != active["h1"]
    report = lab.report("ship", NAME, "--on", TWO)
    assert report["succeeded"]
    assert report["sent_bytes"] == 0
    assert report["nodes"]["h2"]["method"] == "kernel"
    assert len(set(lab.active(TWO_HOSTS).values())) == 1


@pytest.mark.exhaustive
def test_dead_hosts_are_named_and_the_others_finish(lab: Lab) -> None:
    document = write_pack(lab.data, NAME, "1", STORE, 1_000_000)
    lab.hosts.stop_sshd(lab.hosts["h2"])
    lab.hosts.network.cut(lab.hosts["h4"])
    try:
        result = lab.run("ship", NAME, "--on", "h[1-4]", "--min", "2")
    finally:
        lab.hosts.network.heal(lab.hosts["h4"])
        lab.hosts.start_sshd(lab.hosts["h2"])
    assert result.returncode == 0, result.stderr
    assert "h2" in result.stdout and "check: refused" in result.stdout
    assert "h4" in result.stdout and "check: " in result.stdout
    active = lab.active(("h1", "h2", "h3", "h4"))
    assert list(active.values()).count(f"envs/{document['key']}") == 2
    report = lab.report("ship", NAME, "--on", "h[1-4]")
    assert report["succeeded"]
    assert len(report["nodes"]) == 4


@pytest.mark.exhaustive
def test_hosts_that_cannot_reach_each_other_get_their_copies_from_here(lab: Lab) -> None:
    """Three at most; the reason names them, and --set tree=0 ships to all."""
    document = write_pack(lab.data, NAME, "1", STORE, 100_000)
    hosts = ["h1", "h2", "h3"]
    rule = ["INPUT", "--protocol", "tcp", "--dport", "61000:65535", "--jump", "REJECT"]
    for name in hosts:
        lab.hosts[name].run("iptables", "--insert", *rule)
    try:
        report = lab.report("ship", NAME, "--on", "h[1-3]", "--set", "tree=0")
    finally:
        for name in hosts:
            lab.hosts[name].run("iptables", "--delete", *rule)
    assert report["succeeded"]
    assert report["sent_bytes"] == 3 * document["size"]


def kill_at_random(lab: Lab, on: str, chance: random.Random, longest_s: float) -> bool:
    """Start a ship and kill it after a while; whether it was still running."""
    child = lab.start("ship", NAME, "--on", on)
    time.sleep(chance.uniform(0.05, longest_s))
    was_running = child.poll() is None
    child.kill()
    child.communicate()
    return was_running


def killed_ships(lab: Lab, names: Sequence[str], kills: int, seed: int) -> None:
    """Kill ships of a new environment over an old one at random moments: each host has the one or
    the other, whole; and then one run finishes."""
    on = ",".join(names)
    old = write_pack(lab.data, NAME, "old", STORE, 1_000_000)
    begin = time.monotonic()
    assert lab.report("ship", NAME, "--on", on)["succeeded"]
    longest_s = time.monotonic() - begin
    chance = random.Random(seed)
    done = 0
    version = 0
    while done < kills:
        version += 1
        new = write_pack(lab.data, NAME, f"new{version}", STORE, 20_000_000)
        while done < kills and kill_at_random(lab, on, chance, longest_s):
            done += 1
            assert set(lab.active(names).values()) <= {f"envs/{old['key']}", f"envs/{new['key']}"}
        report = lab.report("ship", NAME, "--on", on)
        assert set(states(report).values()) == {"active"}, report
        assert report["sent_bytes"] <= 3 * new["size"]
        assert set(lab.active(names).values()) == {f"envs/{new['key']}"}
        old = new


@pytest.mark.exhaustive
def test_a_killed_ship_leaves_each_host_old_or_new_and_the_next_finishes(lab: Lab) -> None:
    killed_ships(lab, TWO_HOSTS, kills=4, seed=1)


@pytest.mark.exhaustive
def test_fifty_killed_ships(lab: Lab) -> None:
    killed_ships(lab, HOSTS, kills=50, seed=2)


@pytest.mark.exhaustive
def test_a_node_mounts_again_what_a_restart_unmounted(lab: Lab) -> None:
    first = write_pack(lab.data, NAME, "1", STORE)
    report = lab.report("ship", NAME, "--on", TWO)
    assert [row["ends_at_boot"] for row in report["nodes"].values()] == [True, True]
    report = lab.report("ship", NAME, "--on", TWO, "--boot-unit")
    assert set(states(report).values()) == {"active"}
    host = lab.hosts["h1"]
    image = f"{STORE}/images/{first['key']}.sqsh"
    host.run("umount", f"{STORE}/envs/{first['key']}")
    host.run("/etc/provision/mount-stores")
    assert lab.active(TWO_HOSTS) == dict.fromkeys(TWO_HOSTS, f"envs/{first['key']}")
    # Another file in the image's place is not mounted.
    host.run(
        "sh",
        "-ec",
        f"umount {STORE}/envs/{first['key']}; cp {image} {image}.2; mv {image}.2 {image}",
    )
    host.run("sh", "-ec", "! /etc/provision/mount-stores 2>/dev/null")
    assert lab.active(TWO_HOSTS)["h1"] == ""


@pytest.mark.exhaustive
def test_waves_stop_where_a_node_fails(lab: Lab) -> None:
    write_pack(lab.data, NAME, "1", STORE)
    report = lab.report("ship", NAME, "--on", TWO, "--canary", "1,all", "--min", "all")
    assert set(states(report).values()) == {"active"}
    write_pack(lab.data, NAME, "2", STORE)
    report = lab.report("ship", NAME, "--on", TWO, "--canary", "1")
    assert sorted(states(report).values()) == ["active", "passed"]
    assert report["succeeded"]


def test_a_later_wave_that_fails_stops_and_the_printed_command_goes_back(lab: Lab) -> None:
    """The first wave is good. h2 of the second cannot switch, so h3 of the third keeps what it has; the
    hosts are those of a file that only `--inventory` names."""
    nodes = lab.home.root / "work" / "the hosts.yml"
    nodes.write_text('schema: 1\ngroups:\n  lab: {from: ssh, hosts: "h[1-3]"}\n')
    words = ("ship", NAME, "--on", "lab", "--inventory", nodes.name)
    old = write_pack(lab.data, NAME, "1", STORE, 100_000)
    assert set(states(lab.report(*words)).values()) == {"active"}
    new = write_pack(lab.data, NAME, "2", STORE, 100_000)
    # A folder where the new link would be made.
    lab.hosts["h2"].run("mkdir", f"{STORE}/staging/{NAME}.link")
    result = lab.run(*words, "--canary", "1,2,all")
    assert result.returncode == 1, result.stderr
    hosts = ("h1", "h3")
    assert lab.active(hosts) == {"h1": f"envs/{new['key']}", "h3": f"envs/{old['key']}"}
    text = " ".join(result.stdout.split())
    assert "stopped after h1: 1 node of a wave could not be activated" in text
    command = text.partition("Go back: provision ")[2].partition(" small-")[0]
    assert command == f"rollback {NAME} --on h1 --inventory 'the hosts.yml'"
    assert lab.run(*shlex.split(command)).returncode == 0
    assert lab.active(hosts) == dict.fromkeys(hosts, f"envs/{old['key']}")


def test_a_port_of_ansibles_inventory_reaches_the_host(lab: Lab) -> None:
    """h1 listens at 2222 only."""
    host, config = lab.hosts["h1"], lab.hosts.config.parent / "sshd_h1"
    usual = config.read_text()
    lab.hosts.stop_sshd(host)
    config.write_text(f"Port 2222\n{usual}")
    variables = {"h1": {"ansible_port": 2222, "ansible_user": "root"}}
    inventory = lab.home.root / "inventory.json"
    inventory.write_text(
        json.dumps({"_meta": {"hostvars": variables}, "gpu": {"hosts": list(TWO_HOSTS)}})
    )
    nodes = lab.home.root / "ansible.yml"
    group = "{from: ansible, inventory: inventory.json, group: gpu}"
    nodes.write_text(f"schema: 1\ngroups: {{gpu: {group}}}\n")
    words = ("--on", "gpu", "--inventory", str(nodes))
    try:
        lab.hosts.start_sshd(host)
        assert lab.run("nodes", "check", "--on", "h1").returncode == 1
        write_pack(lab.data, NAME, "1", STORE, 100_000)
        assert set(states(lab.report("ship", NAME, *words)).values()) == {"active"}
        assert len(set(lab.active(TWO_HOSTS).values())) == 1
    finally:
        lab.hosts.stop_sshd(host)
        config.write_text(usual)
        lab.hosts.start_sshd(host)


@pytest.fixture
def open_lab(lab: Lab) -> Iterator[Lab]:
    """Others may enter the folders of its user."""
    with tempfile.TemporaryDirectory(prefix="home-", dir="/tmp") as name:
        Path(name).chmod(0o711)
        yield Lab(make_home(Path(name)), lab.hosts)


def test_another_user_starts_what_root_shipped_and_changes_nothing(open_lab: Lab) -> None:
    """A colleague's login, without rights in the store: check and launch work, ship says what is missing."""
    lab = open_lab
    write_pack(lab.data, NAME, "1", STORE, 100_000)
    assert lab.report("ship", NAME, "--on", TWO)["succeeded"]
    active = lab.active(TWO_HOSTS)
    nodes = lab.home.root / "ann.yml"
    nodes.write_text("schema: 1\ndefaults: {ssh_options: [-l, ann]}\n")
    words = ("--on", TWO, "--inventory", str(nodes))
    # The keys that let her in.
    for folder in (lab.hosts.config.parent, lab.hosts.config.parent.parent):
        folder.chmod(0o711)
    for name in TWO_HOSTS:
        script = """
        grep -q ^ann: /etc/passwd || echo ann:x:65533:65533::/opt/ann:/bin/sh >>/etc/passwd
        grep -q ^ann: /etc/shadow || echo 'ann:*:19000::::::' >>/etc/shadow
        install -d -o 65533 -g 65533 /opt/ann
        """
        lab.hosts[name].run("sh", "-ec", script)
    (lab.home.envs / NAME).mkdir(parents=True)
    (lab.home.envs / NAME / "spec.yml").write_text("torch: '2.3'\ncuda: '12.1'\npython: '3.11'\n")
    checked = lab.run("nodes", "check", NAME, *words)
    assert checked.returncode == 0, checked
    started = lab.run(
        *("launch", NAME, *words, "--prefix", f"{STORE}/{NAME}", "--set", "job_name=anns", "--"),
        *("python", "-c", "import os, sys; print(os.getuid(), sys.prefix)"),
    )
    assert started.returncode == 0, started.stderr
    followed = lab.run("jobs", "log", "-f", "anns", *words)
    assert followed.stdout.count(f"65533 {STORE}/{NAME}") == 2, followed
    write_pack(lab.data, NAME, "2", STORE, 100_000)
    shipped = lab.run("ship", NAME, *words)
    assert shipped.returncode == 1
    assert "permission-denied: /opt/provision" in shipped.stdout
    assert "nothing was sent" in shipped.stdout
    assert lab.active(TWO_HOSTS) == active


def test_hosts_take_packs_of_their_signers_only(lab: Lab, tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    line = f'ann@lab namespaces="provision-pack" {key.with_suffix(".pub").read_text()}'
    for name in TWO_HOSTS:
        write = f"mkdir -p {STORE} && cat > {STORE}/allowed_signers"
        lab.hosts[name].run("sh", "-c", f"{write} <<'END'\n{line}END\n")

    def sign(content: str, at: str) -> Pack:
        write_pack(lab.data, NAME, content, STORE)
        folders = Folders(data=lab.data, cache=tmp_path, envs=tmp_path / "envs")
        pack = packs.read_pack(packs.pack_path(folders, NAME))
        packs.sign(pack, key, at)
        return pack

    write_pack(lab.data, NAME, "1", STORE)
    assert reasons(lab.report("ship", NAME, "--on", TWO)) == {"not-signed"}
    newer = sign("2", "2026-02-02T00:00:00Z")
    assert set(states(lab.report("ship", NAME, "--on", TWO)).values()) == {"active"}
    older = sign("3", "2026-01-01T00:00:00Z")
    assert reasons(lab.report("ship", NAME, "--on", TWO)) == {"older-pack"}
    assert set(lab.active(TWO_HOSTS).values()) == {f"envs/{newer.key}"}
    report = lab.report("ship", NAME, "--on", TWO, "--allow-older")
    assert set(states(report).values()) == {"active"}
    assert set(lab.active(TWO_HOSTS).values()) == {f"envs/{older.key}"}


@pytest.mark.exhaustive
def test_nothing_is_sent_if_too_few_nodes_can_be_ready(lab: Lab) -> None:
    write_pack(lab.data, NAME, "1", STORE)
    report = lab.report("ship", NAME, "--on", "h1,nowhere")
    assert (report["sent_bytes"], report["succeeded"]) == (0, False)
    assert states(report)["h1"] == "fit"
    report = lab.report("ship", NAME, "--on", "h1,nowhere", "--stage-only", "--min", "1")
    assert states(report)["h1"] == "passed"


@pytest.mark.exhaustive
def test_the_store_says_who_shipped_what_and_removes_it(lab: Lab) -> None:
    keys = []
    for content in "12":
        keys.append(write_pack(lab.data, NAME, content, STORE)["key"])
        lab.report("ship", NAME, "--on", TWO)
    contents = lab.report("store", "list", "--on", TWO)["nodes"]["h1"]["environments"]
    assert {row["key"]: row["state"] for row in contents} == {
        keys[0]: "installed",
        keys[1]: "active",
    }
    assert lab.run("store", "disk", "--on", TWO).returncode == 0
    events = lab.report("store", "log", NAME, "--on", TWO)["nodes"]["h1"]["events"]
    assert [event["key"] for event in events if event["event"] == "activated"] == keys
    removed = lab.report("store", "remove", NAME, "--on", TWO)["nodes"]["h2"]
    assert removed["removed"] == keys[:1] and [*removed["retained"]] == keys[1:]
