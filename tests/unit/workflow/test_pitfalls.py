"""Warnings about builds: once per environment, with an id."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from provision.cli.main import cli
from provision.core.paths import default_folders
from provision.environment.marker import MARKER
from tests import evidence

HANG = "cuda-graph-hang"


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("provision.workflow.context._warnings", set())
    for name in ("PROVISION_DATA", "PROVISION_CACHE", "PROVISION_ENVS"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    return tmp_path / "provision_envs" / "lab"


def render(*options: str) -> Result:
    command = ["render", "lab", *options]
    return CliRunner().invoke(cli, command)


def accept(lab: Path, warning: str) -> None:
    lab.mkdir(parents=True, exist_ok=True)
    text = f'torch: "2.3"\ncuda: "12.1"\npython_from: channel\naccept: [{warning}]\n'
    (lab / "spec.yml").write_text(text)


REQUEST = ("--torch", "2.3", "--cuda", "12.1", "--python-from", "channel")


def test_a_warning_has_its_id() -> None:
    result = render(*REQUEST)
    assert result.exit_code == 0
    assert f"`accept: [{HANG}]` in spec.yml silences this warning" in result.stderr


def test_an_accepted_warning_is_silent_from_then_on(lab: Path) -> None:
    accept(lab, HANG)
    assert HANG not in render().stderr


def test_a_warning_in_the_passport_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    render(*REQUEST)
    passport = evidence.passport(evidence.report(evidence.phase()))
    passport["name"] = "lab"
    passport["warnings"] = [{"what": HANG, "value": "", "reason": "r", "source": "s"}]
    file = default_folders().passport("lab") / "passport.json"
    evidence.write(file, passport)
    monkeypatch.setattr("provision.workflow.context._warnings", set())
    assert HANG not in render().stderr
    file.write_text("{")
    assert HANG in render().stderr


def test_a_warning_of_the_installed_prefix_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    render(*REQUEST)
    marker = {"name": "lab", "folder": "/envs/lab", "lock_sha256": "1" * 64}
    path = default_folders().prefixes / "lab" / MARKER
    path.parent.mkdir(parents=True)
    for warnings, is_printed in (([HANG], False), (["another"], True), ("damaged", True)):
        path.write_text(json.dumps({**marker, "warnings": warnings}))
        monkeypatch.setattr("provision.workflow.context._warnings", set())
        assert (HANG in render().stderr) == is_printed


def test_accepting_what_is_no_warning_is_refused(lab: Path) -> None:
    accept(lab, "cuda-graf-hang")
    result = render()
    assert result.exit_code == 3
    assert "there is no warning cuda-graf-hang" in result.stderr and HANG in result.stderr


def test_accepting_a_warning_leaves_the_locked_files_alone(lab: Path) -> None:
    render(*REQUEST)
    before = (lab / "environment.yml").read_bytes()
    accept(lab, HANG)
    result = render()
    assert result.exit_code == 0, result.output
    assert (lab / "environment.yml").read_bytes() == before
