"""The health check of a node: what it calls a fault, and the script that acts on it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from provision.verbs.smoke.health_check import health_check_script
from provision_runtime.report import model
from provision_runtime.smoke import health
from tests.paths import DATA

REPORT = json.loads((DATA / "smoke-report.json").read_text())


def report(*ids: str, verdict: str = model.FAIL) -> model.Report:
    findings = [model.ReportedFinding(id, verdict, [0], "what\nhappened", "do") for id in ids]
    phase = model.ReportedPhase("facts", verdict, 1.0, "", {}, findings)
    fields: dict[str, Any] = {
        field.name: REPORT[field.name]
        for field in dataclasses.fields(model.Report)
        if field.name != "phases"
    }
    return model.Report(phases=[phase], **fields)


@pytest.mark.parametrize(
    ("tested", "answer"),
    [
        (report(verdict=model.PASS), "pass"),
        (report("user-site-on-path", verdict=model.WARN), "pass"),
        (report("gpu-lost"), "fail gpu-lost what happened"),
        (report("torch-broken", "gpu-lost"), "fail gpu-lost what happened"),
        (report("torch-broken"), "unknown torch-broken"),
        (report("deadline-passed", "rank-stuck"), "unknown deadline-passed, rank-stuck"),
        (report(verdict=model.UNKNOWN), "unknown the test did not finish"),
    ],
)
def test_only_a_fault_of_the_node_fails(tested: model.Report, answer: str) -> None:
    assert health.judge(tested) == answer


def test_script_names_the_shipped_environment_and_its_own_command() -> None:
    script = health_check_script("lab", None, None, 3)
    assert "PYTHON=/opt/provision/lab/bin/python\n" in script
    assert "DRAIN_MAX=3\n" in script
    assert "remake with: provision smoke lab --health-check --drain-max 3\n" in script


def test_script_is_sound() -> None:
    script = health_check_script("lab", Path("/a b/$x"), None, None)
    assert "PYTHON='/a b/$x/bin/python'\n" in script
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--exclude=SC2016", "-"], input=script, text=True, check=True)
