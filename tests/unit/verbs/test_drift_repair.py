"""Which nodes `--fix` ships to, and how a node forgets an environment that was changed."""

from __future__ import annotations

from pathlib import Path

from provision.verbs.drift.repair import plan_repair
from provision_runtime.node import install, store_lock, store_status, transfer
from provision_runtime.node.store import Store
from tests.drift_records import cluster, facts, record, timed_out
from tests.node_stores import NAME, RUN, pack_toy, ship


def test_only_what_a_ship_can_mend_is_shipped() -> None:
    nodes = cluster(
        8,
        n0002=facts(driver="535.104.05"),
        n0003=facts(environment=None),
        n0004=facts(environment="train-ffffffffffff", lock="f" * 64),
        n0005=facts(files="f" * 64),
    )
    repair = plan_repair(record(nodes, {"n0009": timed_out()}))
    assert repair is not None and repair.key == "train-0123456789ab"
    assert repair.nodes == ("n0003", "n0004", "n0005")
    assert repair.changed == ("n0005",)


def test_without_a_majority_nobody_knows_what_is_right() -> None:
    assert plan_repair(record({"n1": facts(), "n2": facts(environment="train-2")})) is None


def test_a_distrusted_environment_is_verified_and_installed_anew(tmp_path: Path) -> None:
    store, toy = Store(str(tmp_path / "store")), pack_toy(tmp_path, "1")
    ship(store, toy)
    changed = Path(store.environment(toy.key), "version")
    changed.write_text("2" * 1000)
    assert install.install(store.path, NAME, toy.key, RUN)["is_new"] is False
    store_lock.distrust(store.path, NAME, toy.key, RUN)
    status = store_status.status(store.path, toy.pack, RUN)
    assert (status["verified"], status["installed"], status["has_image"]) == (False, None, True)
    assert changed.exists(), "jobs keep what they use"
    transfer.verify(store.path, toy.pack, RUN)
    assert install.install(store.path, NAME, toy.key, RUN)["is_new"] is True
    assert changed.read_text() == "1" * 1000
