"""Outliers among nodes: simulated ones whose files really differ, and copies of a real prefix."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from provision.cli.main import cli
from provision.cluster.inventory import select_nodes
from provision.core.documents import DriftRecord
from provision.core.schema import schema_error
from provision.verbs.drift.survey import DriftRequest, survey
from tests.elf_files import write_library
from tests.integration.ssh_hosts import SshHosts
from tests.results import parse_result
from tests.simulated_nodes import (
    OTHER_DRIVER,
    OTHER_PLUGIN,
    SimulatedNodes,
    add_wheel,
    flip_byte,
    remove_wheel,
    set_driver,
    set_plugin,
    simulate_nodes,
)
from tests.small import write_wheel


def compare(nodes: SimulatedNodes, **request: Any) -> DriftRecord:
    """The record of a comparison; it must fit its schema."""
    selection = select_nodes(nodes.on)
    assert tuple(node.name for node in selection.nodes) == nodes.names
    record = survey(
        DriftRequest(
            name="train", selection=selection, prefix=nodes.prefix, root=nodes.root, **request
        )
    )
    assert schema_error(record, "drift") is None
    return record


def differences(record: Any) -> dict[str, set[str]]:
    """The facts in which each node deviates."""
    return {node["name"]: set(node["differs"]) for node in record["nodes"] if "differs" in node}


@pytest.mark.parametrize(
    ("count", "distributions"),
    [(45, 20), (1000, 123)],
)
def test_20_of_20_outliers_are_named(tmp_path: Path, count: int, distributions: int) -> None:
    nodes = simulate_nodes(tmp_path, count, distributions)
    expected: dict[str, set[str]] = {}
    outliers = nodes.names[1::2][:20]
    for number, name in enumerate(outliers):
        kind = number % 5
        if kind == 0:
            flip_byte(nodes.environment(name), f"package{number:03}")
            expected[name] = {f"distribution:package{number:03}"}
        elif kind == 1:
            add_wheel(nodes.environment(name), "flash-attn", "2.5.8")
            expected[name] = {"distribution:flash-attn"}
        elif kind == 2:
            remove_wheel(nodes.environment(name), f"package{number:03}", "1.0")
            expected[name] = {f"distribution:package{number:03}"}
        elif kind == 3:
            set_driver(nodes.system(name), OTHER_DRIVER)
            expected[name] = {"driver"}
        else:
            set_plugin(nodes.system(name), OTHER_PLUGIN)
            expected[name] = {"aws_ofi_nccl"}
    assert len(expected) == 20
    record = compare(nodes, deep=True)
    assert record["failures"] == []
    assert differences(record) == expected
    assert record["counts"] == {"nodes": count, "same": count - 20, "drift": 20, "unknown": 0}


@pytest.fixture
def nodes(short_path: Path) -> SimulatedNodes:
    return simulate_nodes(short_path, 5, 3)


def test_values_of_outlier_and_majority(nodes: SimulatedNodes) -> None:
    remove_wheel(nodes.environment("n0002"), "package001", "1.0")
    add_wheel(nodes.environment("n0002"), "package001", "1.1")
    set_plugin(nodes.system("n0004"), OTHER_PLUGIN)
    facts = {fact["name"]: fact for fact in compare(nodes)["facts"]}
    package = facts["distribution:package001"]
    assert str(package["reference"]).startswith("1.0 (files ") and package["count"] == 4
    [deviation] = package["deviations"]
    assert deviation["value"].startswith("1.1 (files ") and deviation["nodes"] == "n0002"
    [deviation] = facts["aws_ofi_nccl"]["deviations"]
    assert deviation["value"].startswith(f"{OTHER_PLUGIN} (build ")
    assert facts["lock"]["count"] == 5, "an installation by hand leaves the lock's hash as it was"


def test_flipped_byte_is_seen_by_deep_alone(nodes: SimulatedNodes) -> None:
    flip_byte(nodes.environment("n0003"), "package000")
    assert differences(compare(nodes)) == {}
    assert differences(compare(nodes, deep=True)) == {"n0003": {"distribution:package000"}}


def test_node_that_cannot_read_its_files_is_unknown(nodes: SimulatedNodes) -> None:
    """A loop of links, since nobody can deny root to read."""
    site = nodes.environment("n0005") / "lib"
    shutil.rmtree(site)
    site.symlink_to("lib")
    driver = nodes.system("n0001") / "proc/driver/nvidia/version"
    driver.unlink()
    driver.symlink_to("version")
    record = compare(nodes)
    verdicts = {node["name"]: node["verdict"] for node in record["nodes"]}
    assert verdicts["n0001"] == "unknown" and verdicts["n0005"] == "drift"
    [unread] = {fact["name"]: fact for fact in record["facts"]}["driver"]["unread"]
    assert unread["nodes"] == "n0001" and "symbolic links" in unread["reason"]


def test_shared_store_is_read_by_one_node(nodes: SimulatedNodes) -> None:
    inventory = nodes.folder / "nodes.yml"
    folder = nodes.folder / "store"
    (folder / "envs").mkdir(parents=True)
    shutil.copytree(nodes.folder / "reference" / "env", folder / "envs" / "train-0123456789ab")
    (folder / "train").symlink_to("envs/train-0123456789ab")
    inventory.write_text(f"schema: 1\ngroups: {{}}\ndefaults: {{path: {folder}, store: shared}}\n")
    record = survey(DriftRequest(name="train", selection=select_nodes(nodes.on, inventory)))
    names = {fact["name"]: fact["reference"] for fact in record["facts"]}
    assert names["environment"] == "train-0123456789ab"
    assert "files" not in names and "share one store" in record["notes"][0]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["drift", *arguments])


def test_command_names_the_outlier_and_ends_with_1(nodes: SimulatedNodes) -> None:
    place = ("train", "--on", nodes.on, "--prefix", nodes.prefix)
    result = run(*place)
    assert result.exit_code == 0, result.output
    assert "5 nodes, all the same" in result.output
    add_wheel(nodes.environment("n0002"), "flash-attn", "2.5.8")
    file = nodes.folder / "drift.json"
    result = run(*place, "-o", str(file))
    assert result.exit_code == 1
    assert "n0002: flash-attn 2.5.8" in result.output
    assert "on 4 nodes: not installed" in result.output
    result = run(*place, "--json")
    record = parse_result(result.stdout)
    assert record["nodes"] == json.loads(file.read_text())["nodes"]


def test_environment_that_is_nowhere(nodes: SimulatedNodes) -> None:
    result = run("absent", "--on", nodes.on, "--prefix", str(nodes.folder / "absent"))
    assert result.exit_code == 1
    assert "n[0001-0005]: environment not installed" in result.output


def test_relative_prefix_is_refused() -> None:
    result = run("train", "--on", "local", "--prefix", "envs/train")
    assert result.exit_code == 3
    assert "--prefix envs/train is not an absolute path" in result.output


def uv(*arguments: str) -> None:
    command = [str(Path(sys.executable).parent / "uv"), "--no-config", "--offline", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def install(prefix: Path, *wheels: Path) -> None:
    python = str(prefix / "bin" / "python")
    uv("pip", "install", "--python", python, "--no-index", *map(str, wheels))


def make_prefix(prefix: Path, wheels: Path) -> None:
    """A virtual environment with three wheels, installed by uv."""
    uv("venv", "--python", sys.executable, str(prefix))
    install(prefix, *(write_wheel(wheels, f"part{number}", "1.0") for number in range(3)))


def change_hosts(hosts: SshHosts, key: str, wheels: Path) -> dict[str, set[str]]:
    """What happens to nodes in practice; returns the facts that must deviate, by host."""
    prefixes = {name: hosts[name].folder / "opt/provision/envs" / key for name in hosts.names}
    install(prefixes["h2"], write_wheel(wheels, "part1", "2.0"))
    python = str(prefixes["h3"] / "bin" / "python")
    uv("pip", "uninstall", "--python", python, "part2")
    [module] = prefixes["h4"].glob("lib/python*/site-packages/part0*.py")
    content = bytearray(module.read_bytes())
    content[-2] ^= 1
    module.write_bytes(content)
    hosts.run("h5", "echo NCCL_IB_HCA=mlx5_0 > /etc/nccl.conf")
    plugin = hosts["h6"].folder / "opt/amazon/ofi-nccl/lib/libnccl-net.so"
    write_library(plugin, b"\0NET/OFI Initializing aws-ofi-nccl 1.9.1-aws\0")
    (hosts["h7"].folder / "opt/provision/train").unlink()
    return {
        "h2": {"distribution:part1"},
        "h3": {"distribution:part2"},
        "h4": {"distribution:part0"},
        "h5": {"setting:NCCL_IB_HCA"},
        "h6": {"aws_ofi_nccl"},
        "h7": {"environment"},
    }


@pytest.mark.exhaustive
@pytest.mark.sshd
def test_copies_of_a_real_prefix_on_eight_hosts(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    key = "train-0123456789ab"
    make_prefix(tmp_path / "prefix", tmp_path)
    for host in ssh_hosts.network.hosts:
        store = host.folder / "opt" / "provision"
        shutil.copytree(tmp_path / "prefix", store / "envs" / key, symlinks=True)
        (store / "train").symlink_to(f"envs/{key}")

    def compare_hosts() -> dict[str, Any]:
        command = [str(Path(sys.executable).parent / "provision"), "drift", "train", "--deep"]
        process = subprocess.run(
            [*command, "--on", "h[1-8]", "--json"],
            env={**os.environ, **ssh_hosts.environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert process.returncode in (0, 1), process.stderr
        record: dict[str, Any] = parse_result(process.stdout)
        assert (record["verdict"] == "same") == (process.returncode == 0)
        return record

    try:
        assert compare_hosts()["counts"] == {"nodes": 8, "same": 8, "drift": 0, "unknown": 0}
        expected = change_hosts(ssh_hosts, key, tmp_path)
        ssh_hosts.stop_sshd(ssh_hosts["h8"])
        record = compare_hosts()
        assert differences(record) == expected
        assert record["counts"] == {"nodes": 8, "same": 1, "drift": 6, "unknown": 1}
        [failure] = record["failures"]
        assert (failure["nodes"], failure["reason"]) == ("h8", "refused")
    finally:
        ssh_hosts.start_sshd(ssh_hosts["h8"])
        ssh_hosts.run("h5", "rm -f /etc/nccl.conf")
        for host in ssh_hosts.network.hosts:
            for name in ("provision", "amazon"):
                shutil.rmtree(host.folder / "opt" / name, ignore_errors=True)
