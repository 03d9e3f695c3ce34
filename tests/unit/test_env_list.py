"""`provision env list`: what it says of a prefix is true of that prefix."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from provision.commands import env_list
from provision.commands.context import Context
from provision.core.paths import Folders
from provision.environment import prefix as prefixes
from tests import evidence

LOCK_SHA256 = "1" * 64


class Silent:
    shows_bars = False

    def say(self, text: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def meter(self, title: str, total: int) -> Any: ...


@pytest.fixture
def context(tmp_path: Path) -> Context:
    folders = Folders(data=tmp_path / "data", cache=tmp_path / "cache", envs=tmp_path / "envs")
    return Context(folders=folders, progress=Silent())


def install(context: Context, name: str, lock_sha256: str = LOCK_SHA256) -> Path:
    """A prefix with the marker of an installed one."""
    path = context.folders.prefixes / name
    (path / "conda-meta").mkdir(parents=True)
    marker = {"name": name, "folder": str(context.folders.envs / name), "lock_sha256": lock_sha256}
    (path / prefixes.MARKER).write_text(json.dumps(marker))
    return path


def write_passport(context: Context, name: str, prefix: Path, **changes: Any) -> None:
    report = evidence.report(evidence.phase())
    passport = evidence.passport(report, host=changes.pop("host", platform.node()))
    passport["name"] = name
    passport["prefix"] = {"path": str(prefix), "lock_sha256": LOCK_SHA256}
    passport["lock"]["sha256"] = changes.pop("lock_sha256", LOCK_SHA256)
    evidence.write(context.folders.envs / name / "passport.json", passport)


def verdict(context: Context) -> str:
    (row,) = env_list.environments(context)
    return row.smoke


def test_a_verdict_is_shown_for_the_tested_prefix(context: Context) -> None:
    write_passport(context, "lab", install(context, "lab"))
    assert verdict(context) == "prefix: pass"


def test_a_verdict_of_another_host_says_so(context: Context) -> None:
    write_passport(context, "lab", install(context, "lab"), host="node7")
    assert verdict(context) == "prefix: pass on node7"


def test_a_copied_passport_proves_nothing(context: Context) -> None:
    install(context, "lab")
    write_passport(context, "lab", Path("/elsewhere/lab"))
    assert verdict(context) == ""


def test_a_passport_of_another_lock_proves_nothing(context: Context) -> None:
    write_passport(context, "lab", install(context, "lab"), lock_sha256="2" * 64)
    assert verdict(context) == ""
