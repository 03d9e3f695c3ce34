"""The commands with which `drift` ends: what a ship can mend."""

from __future__ import annotations

from pathlib import Path

from provision.verbs.drift.output import repair_commands
from tests.drift_records import cluster, facts, record, selection_of, timed_out


def test_only_what_a_ship_can_mend_is_shipped() -> None:
    nodes = cluster(
        8,
        n0002=facts(driver="535.104.05"),
        n0003=facts(environment=None),
        n0004=facts(environment="train-ffffffffffff", lock="f" * 64),
        n0005=facts(files="f" * 64),
    )
    document = record(nodes, {"n0009": timed_out()})
    document |= {"name": "train", "on": "slurm:gpu", "path": "/opt/provision/train"}
    assert repair_commands(document, selection_of(document))[2:] == [
        "  provision store remove train-0123456789ab --force --on 'slurm:gpu&n0005'",
        "  provision ship train --on 'slurm:gpu&n[0003-0005]'",
    ]
    named = repair_commands(document, selection_of(document, Path("the lab.yml")))
    assert named[-1].endswith(" --on 'slurm:gpu&n[0003-0005]' --inventory 'the lab.yml'")


def test_without_a_majority_nobody_knows_what_is_right() -> None:
    document = record({"n1": facts(), "n2": facts(environment="train-2")})
    assert not repair_commands(document, selection_of(document))
