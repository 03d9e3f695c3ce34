"""`provision env list`: what it says of a prefix is true of that prefix."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest

from provision.core import host
from provision.core.paths import Folders
from provision.environment import prefix as prefixes
from provision.environment.marker import Marker
from provision.environment.marker import write as write_marker
from provision.verbs.report.output import passport_lines
from provision.workflow import environments as env_list
from provision.workflow.context import Context
from provision.workflow.passport import judged_passport
from tests import evidence
from tests.progress import Recorder

LOCK_SHA256 = "1" * 64


@pytest.fixture
def context(tmp_path: Path) -> Context:
    folders = Folders(data=tmp_path / "data", cache=tmp_path / "cache", envs=tmp_path / "envs")
    return Context(folders=folders, progress=Recorder())


def install(context: Context, name: str, lock_sha256: str = LOCK_SHA256) -> Path:
    """A prefix with the marker of an installed one."""
    path = context.folders.prefixes / name
    folder = str(context.folders.envs / name)
    write_marker(path, Marker(name=name, folder=folder, lock_sha256=lock_sha256))
    return path


def write_passport(context: Context, name: str, prefix: Path, **changes: Any) -> Path:
    """A passport whose verdict was measured here. changes: of the facts about the machine, and
    lock_sha256 of the passport."""
    passport = evidence.passport(evidence.report(evidence.phase()))
    passport["name"] = name
    passport["prefix"] = {"path": str(prefix), "lock_sha256": LOCK_SHA256}
    passport["lock"]["sha256"] = changes.pop("lock_sha256", LOCK_SHA256)
    machine = {**host.identity(), **changes}
    passport["smoke"]["prefix"]["measured_on"] = {
        key: value for key, value in machine.items() if value is not None
    }
    return evidence.write(context.folders.passport(name) / "passport.json", passport)


def verdict(context: Context) -> str:
    (row,) = env_list.environments(context)
    return row.smoke


def test_a_verdict_is_shown_for_the_tested_prefix(context: Context) -> None:
    write_passport(context, "lab", install(context, "lab"))
    assert verdict(context) == "prefix: pass"
    (row,) = env_list.environments(context)
    assert row.verdicts[0].measured_at == 1767225600.0


@pytest.mark.parametrize(
    "changes,where",
    [
        ({"host": "node7"}, "on node7"),
        ({"machine_id": "0" * 32}, f"on a machine called {platform.node()}"),
        ({"machine_id": None}, f"on a machine called {platform.node()}"),  # an earlier provision
        ({"driver": "999.1"}, "with driver 999.1"),
        ({"gpus": "0" * 32}, "with other GPUs"),
        ({"gpus": None}, "with other GPUs"),
    ],
)
def test_a_verdict_of_another_machine_says_so(
    context: Context, changes: dict[str, Any], where: str
) -> None:
    """A home may be shared by machines, and one machine changes its GPUs and driver."""
    write_passport(context, "lab", install(context, "lab"), **changes)
    (row,) = env_list.environments(context)
    assert (row.smoke, row.verdicts[0].elsewhere) == (f"prefix: pass {where}", where)


def test_a_verdict_is_not_of_here_where_nobody_knows(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = {**host.identity(), "gpus": host.UNKNOWN}
    monkeypatch.setattr(host, "identity", lambda: unknown)
    write_passport(context, "lab", install(context, "lab"))
    (row,) = env_list.environments(context)
    assert row.verdicts[0].elsewhere


def test_a_passport_of_another_prefix_proves_nothing(context: Context) -> None:
    install(context, "lab")
    write_passport(context, "lab", Path("/elsewhere/lab"))
    assert verdict(context) == ""


def test_a_passport_of_another_lock_says_so(context: Context) -> None:
    write_passport(context, "lab", install(context, "lab"), lock_sha256="2" * 64)
    assert verdict(context) == "of another lock"


def test_readers_say_what_the_passport_is_not_of(context: Context) -> None:
    prefix = install(context, "lab")
    write_passport(context, "lab", prefix, host="gpu07")
    document = judged_passport(context.folders, "lab")
    assert (document["outdated"], document["smoke"]["prefix"]["elsewhere"]) == ("", "on gpu07")
    lock = context.folders.envs / "lab" / "conda-lock.yml"
    lock.parent.mkdir(parents=True)
    lock.write_text("version: 1\n")
    document = judged_passport(context.folders, "lab")
    assert f"of another lock ({LOCK_SHA256[:12]}) than {lock}" in document["outdated"]
    assert "of another lock" in "\n".join(passport_lines(document, width=None))
    lock.unlink()
    write_passport(context, "lab", prefix, lock_sha256="2" * 64)
    assert f"than {prefix}" in judged_passport(context.folders, "lab")["outdated"]
    prefixes.remove(prefix)
    assert "not installed" in judged_passport(context.folders, "lab")["outdated"]
