"""`provision drift --fix`: real shipments to simulated nodes whose environments were changed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import Result

from tests import ship_runs
from tests.integration.shipped_packs import write_pack
from tests.integration.test_drift import PACK_FIELDS, differences, run
from tests.integration.test_ship_hosts import NAME, STORE, Lab, lab  # noqa: F401
from tests.node_stores import PackedToy, pack_toy
from tests.results import parse_result

# As few as have a majority when one deviates.
HOSTS = ("h1", "h2", "h3")
ON = "h[1-3]"


@dataclass(frozen=True)
class Stores:
    """Simulated nodes n1 to n4, on which an environment was shipped. The pack is where `provision
    pack` puts it."""

    hosts: ship_runs.SimulatedNodes
    toy: PackedToy
    inventory: Path

    def drift(self, *arguments: str) -> Result:
        place = ("--on", f"exec:{self.hosts.names}", "--inventory", str(self.inventory))
        return run("toy", *place, "--deep", *arguments)

    def differences(self) -> dict[str, set[str]]:
        return differences(parse_result(self.drift("--json").stdout))

    def version(self, name: str) -> Path:
        """A file of a node's environment."""
        return self.hosts.store(name) / "envs" / self.toy.key / "version"


@pytest.fixture
def stores(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    hosts = ship_runs.SimulatedNodes(root=short_path / "nodes", names="n[1-4]")
    monkeypatch.setenv("PATH", hosts.path)
    monkeypatch.setenv("PROVISION_DATA", str(short_path / "data"))
    toy = pack_toy(short_path, "1")
    folder = short_path / "data" / "packs" / "toy"
    folder.mkdir(parents=True)
    image = ship_runs.write_image(folder, toy)
    (folder / f"{toy.key}.json").write_text(json.dumps({**PACK_FIELDS, **toy.pack}))
    ship_runs.shipment(hosts, image).ship()
    inventory = short_path / "nodes.yml"
    defaults = {"path": f"{hosts.root}/%h", "python": hosts.python, "readers": "me"}
    inventory.write_text(json.dumps({"schema": 1, "groups": {}, "defaults": defaults}))
    return Stores(hosts, toy, inventory)


def test_fix_ships_to_nodes_whose_environment_deviates(stores: Stores) -> None:
    assert stores.drift().exit_code == 0
    stores.version("n2").write_text("2" * 1000)
    (stores.hosts.store("n4") / "toy").unlink()
    assert stores.differences() == {"n2": {"distribution:(other files)"}, "n4": {"environment"}}
    result = stores.drift("--fix")
    assert result.exit_code == 0, result.output
    assert "4 nodes, all the same" in result.output
    assert f"shipping {stores.toy.key} to n[2,4]" in result.stderr
    assert stores.version("n2").read_text() == "1" * 1000


@pytest.mark.exhaustive
def test_fix_with_another_pack_would_make_more_drift(stores: Stores, short_path: Path) -> None:
    (stores.hosts.store("n4") / "toy").unlink()
    other = pack_toy(short_path, "2")
    folder = short_path / "data" / "packs" / "toy"
    (folder / f"{stores.toy.key}.json").unlink()
    ship_runs.write_image(folder, other)
    (folder / f"{other.key}.json").write_text(json.dumps({**PACK_FIELDS, **other.pack}))
    result = stores.drift("--fix")
    assert result.exit_code == 3
    assert f"should have {stores.toy.key}, and the pack here is {other.key}" in " ".join(
        result.stderr.split()
    )
    assert stores.differences() == {"n4": {"environment"}}


@pytest.mark.exhaustive
def test_fix_needs_a_store_and_a_majority(stores: Stores) -> None:
    assert stores.drift("--fix", "--prefix", "/opt/train").exit_code == 3
    for name in ("n1", "n2"):
        (stores.hosts.store(name) / "toy").unlink()
        (stores.hosts.store(name) / "toy").symlink_to("envs/toy-ffffffffffff")
        (stores.hosts.store(name) / "envs" / "toy-ffffffffffff" / "bin").mkdir(parents=True)
    result = stores.drift("--fix")
    assert result.exit_code == 3 and "more than half" in " ".join(result.stderr.split())


@pytest.mark.exhaustive
@pytest.mark.sshd
@pytest.mark.needs("mksquashfs")
def test_a_mount_that_a_reboot_ended_is_mended(lab: Lab) -> None:  # noqa: F811
    key = write_pack(lab.data, NAME, "1", STORE, 100_000)["key"]
    lab.report("ship", NAME, "--on", ON)
    record = lab.report("drift", NAME, "--on", ON, "--deep")
    assert record["counts"] == {"nodes": 3, "same": 3, "drift": 0, "unknown": 0}
    facts = {fact["name"]: fact["reference"] for fact in record["facts"]}
    assert (facts["environment"], facts["mounted_as"]) == (key, "squashfs")

    lab.hosts["h3"].run("sh", "-c", f"umount {STORE}/envs/{key}")
    assert differences(lab.report("drift", NAME, "--on", ON)) == {"h3": {"environment"}}
    assert lab.report("drift", NAME, "--on", ON, "--fix")["verdict"] == "same"
    assert set(lab.active(HOSTS).values()) == {f"envs/{key}"}
