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
from provision_runtime.node.store import verified_record
from provision_runtime.report import model
from provision_runtime.smoke import health
from tests.paths import DATA
from tests.programs import write_program

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


def test_script_names_the_shipped_environment_and_its_own_command(tmp_path: Path) -> None:
    inventory = tmp_path / "nodes.yml"
    inventory.write_text("schema: 1\ndefaults: {drain_max: 3}\n")
    script = health_check_script("lab", None, inventory)
    assert "PYTHON=/opt/provision/lab/bin/python\n" in script
    assert "DRAIN_MAX=3\n" in script
    assert f"remake with: provision smoke lab --health-check --inventory {inventory}\n" in script


def test_script_is_sound() -> None:
    script = health_check_script("lab", Path("/a b/$x"), None)
    assert "PYTHON='/a b/$x/bin/python'\n" in script
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--exclude=SC2016", "-"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    ("state", "drained"), [("missing", True), ("silent", False), ("mounted again", False)]
)
def test_only_a_certainly_missing_environment_drains(
    tmp_path: Path, state: str, drained: bool
) -> None:
    """The script itself, with programs in the place of Slurm's."""
    calls = tmp_path / "calls"
    mounts = "exit 1"
    if state == "mounted again":
        mounts = f"mkdir -p {tmp_path}/prefix/bin; ln -sf /bin/true {tmp_path}/prefix/bin/python"
    programs = {
        "sinfo": "",
        "scontrol": f'echo "$*" >>{calls}',
        "mount-stores": mounts,
        "stat": "exec sleep 60",
    }
    for name, text in programs.items():
        write_program(tmp_path / name, f"#!/bin/sh\n{text}\n")
    script = health_check_script("lab", tmp_path / "prefix", None)
    script = script.replace("SLURM=/usr/bin", f"SLURM={tmp_path}").replace(
        "/etc/provision/mount-stores", str(tmp_path / "mount-stores")
    )
    if state == "silent":
        script = script.replace("timeout -k 1 5 stat", f"timeout -k 1 1 {tmp_path}/stat")
    result = subprocess.run(["sh", "-c", script], env={"SLURMD_NODENAME": "n1"}, check=True)
    assert result.returncode == 0
    assert calls.exists() == drained
    if drained:
        assert "NodeName=n1 State=DRAIN" in calls.read_text()
        assert "environment-missing" in calls.read_text()


def test_metrics_tell_a_changed_image(tmp_path: Path) -> None:
    store = tmp_path / "store"
    key = f"lab-{'0' * 12}"
    for folder in ("metrics", "images", f"envs/{key}/bin"):
        (store / folder).mkdir(parents=True)
    (store / "lab").symlink_to(f"envs/{key}")
    (store / f"envs/{key}/bin/python").symlink_to("/bin/true")
    (store / f"envs/{key}.installed").write_text('{"method": "kernel", "sha256": "1"}')
    image = store / f"images/{key}.sqsh"
    image.write_text("image")
    record = verified_record(image.stat(), "1")
    (store / f"images/{key}.verified").write_text(json.dumps(record, sort_keys=True))
    script = health_check_script("lab", None, None).replace("/opt/provision", str(store))
    values = []
    for text in ("image", "longer image"):
        image.write_text(text)
        subprocess.run(["sh", "-c", script], env={"SLURMD_NODENAME": "n1"}, check=True)
        metrics = (store / "metrics/lab-health.prom").read_text()
        values.append(metrics.partition('drifted{name="lab"} ')[2].strip())
    assert values == ["0", "1"]
