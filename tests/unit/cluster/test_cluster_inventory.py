"""Which nodes `--on` and nodes.yml mean."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from provision.cluster.inventory import (
    NodeDefaults,
    find_inventory,
    read_inventory,
    select_nodes,
)
from provision.core.errors import InvalidSpec
from tests.paths import DATA
from tests.programs import write_program

GROUPS = """\
schema: 1
groups:
  a100: {from: slurm, partition: gpu, features: a100}
  h100: {from: slurm, partition: gpu, features: [h100, ib]}
  none: {from: slurm, partition: gpu, features: b200}
  desks: {from: ssh, hosts: "desk[01-03]"}
  kube: {from: kubernetes, selector: gpu=yes, context: lab}
defaults:
  path: /srv/provision
  store: shared
  fanout: 8
  connect_s: 2.5
  python: /usr/bin/python3.11
  via: srun
  ssh_options: [-F, ~/.ssh/cluster]
"""


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A nodes.yml, and the commands of the engines that it names."""
    path = tmp_path / "nodes.yml"
    path.write_text(GROUPS)
    tools = tmp_path / "bin"
    tools.mkdir()
    data = shlex.quote(str(DATA))
    for name, script in {
        "sinfo": f'case "$*" in *%N*) cat {data}/sinfo/24.11.txt;; *) echo gpu; echo cpu;; esac',
        "kubectl": f"cat {data}/kubectl/nodes.json",
    }.items():
        write_program(tools / name, f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    return path


def names(on: str, inventory: Path | None = None) -> list[str]:
    return [node.name for node in select_nodes(on, inventory).nodes]


@pytest.mark.parametrize("on", ["n[1-3]", "n1,n2,n3", "ssh:n[1-3]", " n[1-3] ", "n[1-3],n2"])
def test_node_sets_are_reached_by_ssh(on: str) -> None:
    nodes = select_nodes(on).nodes
    assert [node.name for node in nodes] == ["n1", "n2", "n3"]
    assert {node.engine for node in nodes} == {"ssh"}
    assert nodes[0].names == ["n1"]


def test_this_machine_and_simulated_nodes() -> None:
    [local] = select_nodes("local").nodes
    assert local.engine == "local"
    simulated = select_nodes("exec:n[1-3]").nodes
    assert [node.engine for node in simulated] == ["exec"] * 3


def test_slurm_partition(inventory: Path) -> None:
    nodes = {node.name: node for node in select_nodes("slurm:gpu").nodes}
    assert nodes["gpu-01"].names == ["gpu-01", "gpu-01.lab"]
    assert nodes["gpu-01"].address == "gpu-01.lab"
    assert nodes["gpu-02"].state == "drained*"
    assert nodes["gpu-02"].reason == "Kill task failed"
    assert not nodes["gpu-02"].responds
    assert nodes["gpu-01"].partition == "gpu"


def test_kubernetes_nodes(inventory: Path) -> None:
    nodes = select_nodes("k8s:gpu=yes,!old").nodes
    assert nodes[0].names == ["ip-10-0-0-1", "gpu-a.lab"]
    assert nodes[0].kubernetes is not None and nodes[0].kubernetes.driver == "550.54.15"
    assert select_nodes("kube", inventory).nodes[0].context == "lab"


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        ("a100", ["gpu-01", "gpu-02"]),
        ("@a100", ["gpu-01", "gpu-02"]),
        ("h100", ["gpu-03", "gpu-04", "gpu-05"]),
        ("a100!gpu-02", ["gpu-01"]),
        ("a100,desks!desk02", ["desk01", "desk03", "gpu-01", "gpu-02"]),
        ("a100,other", ["gpu-01", "gpu-02", "other"]),
        ("slurm:gpu&a100", ["gpu-01", "gpu-02"]),
        ("ssh:a100", ["a100"]),
    ],
)
def test_groups_in_node_sets(on: str, expected: list[str], inventory: Path) -> None:
    assert sorted(names(on, inventory)) == expected


def test_nodes_of_groups_keep_their_engine(inventory: Path) -> None:
    nodes = {node.name: node for node in select_nodes("a100,desks", inventory).nodes}
    assert nodes["gpu-01"].engine == "slurm"
    assert nodes["desk01"].engine == "ssh"


@pytest.mark.parametrize("on", ["a100,lab", "lab,a100", "a100,gpu-[01-02].lab"])
def test_a_node_that_its_engine_calls_otherwise_is_one_node(on: str, inventory: Path) -> None:
    hosts = '  lab: {from: ssh, hosts: "gpu-[01-02].lab"}\ndefaults:'
    inventory.write_text(GROUPS.replace("defaults:", hosts))
    nodes = select_nodes(on, inventory).nodes
    assert [(node.name, node.engine) for node in nodes] == [
        ("gpu-01", "slurm"),
        ("gpu-02", "slurm"),
    ]


def test_a_nodes_own_name_is_its_own_where_hosts_were_exchanged(
    inventory: Path, tmp_path: Path
) -> None:
    """The board of gpu-02 serves as gpu-01, and the other way round."""
    rows = [
        f"{node}|{host}|10.0.0.1|idle|(null)|(null)|8|1000|gpu|none"
        for node, host in (("gpu-01", "gpu-02"), ("gpu-02", "gpu-01"))
    ]
    (tmp_path / "rows").write_text("\n".join(rows) + "\n")
    script = f'case "$*" in *%N*) cat "{tmp_path}/rows";; *) echo gpu;; esac'
    (tmp_path / "bin" / "sinfo").write_text(f"#!/bin/sh\n{script}\n")
    nodes = select_nodes("slurm:gpu!gpu-02", inventory).nodes
    assert [(node.name, node.host) for node in nodes] == [("gpu-01", "gpu-02")]


def test_defaults(inventory: Path) -> None:
    assert read_inventory(inventory).defaults == NodeDefaults(
        path=PurePosixPath("/srv/provision"),
        store="shared",
        fanout=8,
        connect_s=2.5,
        python="/usr/bin/python3.11",
        via="srun",
        ssh_options=("-F", "~/.ssh/cluster"),
    )
    assert select_nodes("n1").defaults == NodeDefaults()


@pytest.mark.parametrize("readers", ["all", "group:ml"])
def test_nodes_are_told_the_rules_of_the_lab(readers: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes.yml"
    path.write_text(f"schema: 1\ndefaults: {{trusted_group: ml, readers: '{readers}'}}\n")
    assert read_inventory(path).defaults.rules == {"trusted_group": "ml", "readers": readers}
    assert NodeDefaults().rules == {"trusted_group": "", "readers": ""}


@pytest.mark.parametrize("on", ["", " ", "@nope", "n1!n1", "exec:", "ssh:", "slurm:"])
def test_no_node(on: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        select_nodes(on)
    assert f"`{on.strip()}`" in str(caught.value) or f"`{on}`" in str(caught.value)
    assert "--on takes" in str(caught.value)


@pytest.mark.parametrize("on", ["local,n1", "n[1-2],local"])
def test_this_machine_is_not_a_host_named_local(on: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        select_nodes(on)
    assert f"`local` cannot be part of --on `{on}`" in str(caught.value)


def test_misspelled_group_among_other_nodes(inventory: Path) -> None:
    with pytest.raises(InvalidSpec) as caught:
        select_nodes("n1,@nope", inventory)
    assert "`@nope` has no nodes." in str(caught.value)
    assert "Groups of nodes.yml: a100," in str(caught.value)


@pytest.mark.parametrize("on", ["slrum:gpu", "n1,slrum:gpu!n2"])
def test_misspelled_prefix(on: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        select_nodes(on)
    assert f"`slrum:gpu` cannot be part of --on `{on}`." in str(caught.value)
    assert "slurm:PARTITION" in caught.value.advice


def test_empty_group_lists_the_others(inventory: Path) -> None:
    with pytest.raises(InvalidSpec) as caught:
        select_nodes("none,desks", inventory)
    assert "`none` has no nodes." in str(caught.value)
    assert "Groups of nodes.yml: a100, desks, h100, kube, none." in str(caught.value)


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("", ':1: the top level: null is not of type "object".'),
        ("schema: 2\n", ":1: schema: 1 was expected."),
        (
            "schema: 1\nnodes: []\n",
            ":1: the top level: Additional properties are not allowed ('nodes' was unexpected).",
        ),
        (
            "schema: 1\ngroups:\n  a: {from: pbs}\n",
            ':3: groups.a.from: "pbs" is not one of "slurm", "ssh" or 3 other candidates.',
        ),
        (
            "schema: 1\ngroups:\n  a: {from: slurm}\n",
            ':3: groups.a: "partition" is a required property.',
        ),
        (
            "schema: 1\ngroups:\n  a:\n    from: ssh\n    hosts: []\n",
            ':5: groups.a.hosts: [] is not of type "string".',
        ),
        (
            "schema: 1\ndefaults: {path: opt}\n",
            ':2: defaults.path: "opt" is not an absolute path, like /opt/provision.',
        ),
        ("schema: 1\ndefaults: {fanout: 0}\n", ":2: defaults.fanout: 0 is less than"),
        ("schema: 1\ngroups: {a: [\n", ":3: this is not YAML"),
        (
            "schema: 1\ngroups:\n  a: {from: ssh, hosts: x}\n  a: {from: ssh, hosts: y}\n",
            ":4: `a` is repeated.",
        ),
        (
            "schema: 1\ngroups:\n  a: {from: slurm, partition: --help}\n",
            ':3: groups.a.partition: "--help" is not the name of a partition',
        ),
        (
            "schema: 1\ndefaults: {path: /opt/$(reboot)}\n",
            ':2: defaults.path: "/opt/$(reboot)" is not an absolute path',
        ),
        (
            "schema: 1\ndefaults: {readers: some}\n",
            ':2: defaults.readers: "some" is not all, group:NAME or me',
        ),
        ("schema: 1\ndefaults: {trusted_group: 'a b'}\n", ':2: defaults.trusted_group: "a b"'),
        (
            "schema: 1\ndefaults:\n  trusted_group: ml\n  readers: group:users\n",
            ":4: `readers: group:users` leaves out members of `trusted_group`.",
        ),
        (
            "schema: 1\ndefaults:\n  readers: me\n  trusted_group: ml\n",
            ":3: `readers: me` leaves out members of `trusted_group`.",
        ),
        ("schema: 1\ndefaults: {connect_s: .nan}\n", ":2: defaults.connect_s: "),
        ("schema: 1\ndefaults: {connect_s: .inf}\n", ":2: defaults.connect_s: "),
    ],
)
def test_mistakes_in_nodes_yml_have_their_lines(text: str, mistake: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes.yml"
    path.write_text(text)
    with pytest.raises(InvalidSpec) as caught:
        read_inventory(path)
    assert f"{path}{mistake}" in str(caught.value)


def test_all_mistakes_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yml"
    path.write_text(
        "schema: 1\ngroups:\n  'a b': {from: ssh, hosts: x}\ndefaults: {via: pdsh, fanout: x}\n"
    )
    with pytest.raises(InvalidSpec) as caught:
        read_inventory(path)
    assert str(caught.value).count(f"{path}:") == 3


def test_bad_hosts_of_a_group(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yml"
    path.write_text("schema: 1\ngroups:\n  a: {from: ssh, hosts: 'n[1-'}\n")
    with pytest.raises(InvalidSpec) as caught:
        select_nodes("a", path)
    assert "missing bracket" in str(caught.value)


def test_inventory_lies_next_to_the_envs(tmp_path: Path) -> None:
    assert find_inventory(tmp_path / "envs") is None
    (tmp_path / "nodes.yml").write_text(GROUPS)
    assert find_inventory(tmp_path / "envs") == tmp_path / "nodes.yml"
    assert find_inventory(tmp_path / "envs", tmp_path / "other.yml") == tmp_path / "other.yml"


def test_named_inventory_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec) as caught:
        select_nodes("n1", tmp_path / "other.yml")
    assert "other.yml" in str(caught.value)


ANSIBLE = {
    "_meta": {
        "hostvars": {
            "g1": {"ansible_host": "10.0.0.1", "ansible_user": "ops", "rack": "r1", "zone": "b"},
            "g2": {"rack": 2},
            "p1": {"ansible_port": 2222, "ansible_user": "ops"},
        }
    },
    "all": {"children": ["ungrouped", "gpu", "odd"]},
    "gpu": {"children": ["new", "gpu"], "hosts": ["g1"]},
    "new": {"hosts": ["g2", "g1"]},
    "odd": {"hosts": ["p1"]},
}


def with_ansible(folder: Path, document: object = ANSIBLE) -> Path:
    """A nodes.yml with groups of an inventory of Ansible."""
    (folder / "inventory.json").write_text(json.dumps(document))
    lab = folder / "nodes.yml"
    rows = [
        f"  {name}: {{from: ansible, inventory: inventory.json, group: {group}}}\n"
        for name, group in (("gpu", "gpu"), ("odd", "odd"), ("x", "gpu, zone: a"))
    ]
    lab.write_text(f"schema: 1\ngroups:\n{''.join(rows)}")
    return lab


def test_an_inventory_of_ansible(tmp_path: Path) -> None:
    source, lab = tmp_path / "inventory.json", with_ansible(tmp_path)
    nodes = select_nodes("x", lab).nodes
    assert [(node.name, node.address, node.rack, node.zone) for node in nodes] == [
        ("g1", "ops@10.0.0.1", "r1", "a"),
        ("g2", "g2", "2", "a"),
    ]
    assert names("gpu", lab) == ["g1", "g2"]
    selection = select_nodes("g[1-2],other", lab)
    addresses = [node.address for node in selection.nodes]
    assert addresses == ["ops@10.0.0.1", "g2", "other"]
    assert selection.part(["g1"]) == "g[1-2],other&g1"
    assert selection.part(["g2", "other"]) == "g2,other"
    assert selection.options(["g2"]) == "--on g2"
    named = replace(selection, inventory=Path("my hosts.json"))
    assert named.options() == "--on 'g[1-2],other' --inventory 'my hosts.json'"
    [node] = select_nodes(selection.part(["g1"]), lab).nodes
    assert node.address == "ops@10.0.0.1"
    [node] = select_nodes("p1", lab).nodes
    assert (node.address, node.ssh_host) == ("ssh://ops@p1:2222", "p1")
    templates = {"g1": {"rack": {"row": 1}}, "p1": {"ansible_host": "{{ base }}.5"}}
    with_ansible(tmp_path, {**ANSIBLE, "_meta": {"hostvars": templates}})
    [node] = select_nodes("g1", lab).nodes
    assert node.rack == ""
    with pytest.raises(InvalidSpec, match=r"p1 has `{{ base }}\.5`"):
        names("odd", lab)
    odd = '{"_meta": {"hostvars": {"g": {"ansible_host": "-oProxyCommand=x"}}}, "gpu": {"hosts": ["g"]}}'
    for text in (
        "[]",
        "{",
        '{"_meta": []}',
        '{"_meta": {}, "gpu": {"hosts": ["-x"]}}',
        odd,
        "\xff",
    ):
        source.write_text(text, encoding="latin-1")
        with pytest.raises(InvalidSpec, match=r"inventory\.json"):
            names("gpu", lab)


def test_older_names_of_variables_of_ansible(tmp_path: Path) -> None:
    """Ansible still takes them, so a host must not be looked for elsewhere."""
    variables = {"ansible_ssh_host": "10.0.0.1", "ansible_ssh_user": "ops"}
    document = {"_meta": {"hostvars": {"g1": variables}}, "gpu": {"hosts": ["g1"]}}
    lab = with_ansible(tmp_path, document)
    [node] = select_nodes("gpu", lab).nodes
    assert node.address == "ops@10.0.0.1"
    ports = (
        ("ansible_port", 22, "10.0.0.1", "10.0.0.1"),
        ("ansible_ssh_port", "2222", "10.0.0.1", "ssh://10.0.0.1:2222"),
        ("ansible_port", 2222, "2001:db8::1", "ssh://[2001:db8::1]:2222"),
    )
    for name, port, host, address in ports:
        hosts = {"g1": {name: port, "ansible_host": host}}
        with_ansible(tmp_path, {**document, "_meta": {"hostvars": hosts}})
        [node] = select_nodes("gpu", lab).nodes
        assert (node.address, node.ssh_host) == (address, host)
    hosts = {"g1": {"ansible_port": "{{ port }}"}}
    with_ansible(tmp_path, {**document, "_meta": {"hostvars": hosts}})
    with pytest.raises(InvalidSpec, match=r"g1 has `{{ port }}`"):
        names("gpu", lab)
    for name in ("ansible_private_key_file", "ansible_ssh_args"):
        with_ansible(tmp_path, {**document, "_meta": {"hostvars": {"g1": {name: "2222"}}}})
        with pytest.raises(InvalidSpec, match=name):
            names("gpu", lab)


def test_where_nodes_stand_by_their_engines(inventory: Path) -> None:
    sinfo = inventory.parent / "bin" / "sinfo"
    row = "a1|a1|a1|idle|ib,rack:7,zone-b|(null)|8|1000|gpu|none"
    write_program(sinfo, f"#!/bin/sh\ncase \"$*\" in *%N*) echo '{row}';; *) echo gpu;; esac\n")
    [node] = select_nodes("slurm:gpu").nodes
    assert (node.rack, node.zone) == ("7", "b")
