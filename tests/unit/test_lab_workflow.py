"""The workflow of the sample lab, which labs copy: valid by GitHub's schema, clean for linters, and its scripts run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision.core.project import project_folder
from tests import evidence
from tests.conftest import ROOT

FOLDER = ROOT / "examples" / "lab"
TEXT = (FOLDER / ".github" / "workflows" / "provision.yml").read_text()
CONTENT = yaml.safe_load(TEXT)
[JOB] = CONTENT["jobs"].values()
STEPS: dict[str, dict[str, Any]] = {step["name"]: step for step in JOB["steps"]}
LOCK = b"lock"


def tool(name: str) -> str:
    executable = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if not executable:
        pytest.skip(f"no {name} on this machine")
    return executable


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_github_schema_accepts_ours_and_rejects_a_broken_one(tmp_path: Path) -> None:
    check = (tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows")
    path = tmp_path / "w.yml"
    path.write_text(TEXT)
    result = run(*check, str(path))
    assert result.returncode == 0, result.stdout
    path.write_text(TEXT.replace("runs-on:", "run-on:"))
    assert run(*check, str(path)).returncode != 0


def test_security_linter_accepts_ours_and_reports_a_mistake(tmp_path: Path) -> None:
    options = ("--offline", "--no-config", "--no-progress", "--persona", "pedantic")
    check = (tool("zizmor"), *options, "--format", "json")
    path = tmp_path / ".github" / "workflows" / "w.yml"
    path.parent.mkdir(parents=True)
    path.write_text(TEXT)
    result = run(*check, str(path))
    assert (result.returncode, json.loads(result.stdout)) == (0, []), result.stdout
    path.write_text(
        re.sub(r"@[0-9a-f]{40} #", "@", TEXT).replace(
            "run: provision smoke", "run: ${{ github.head_ref }} smoke"
        )
    )
    result = run(*check, str(path))
    assert {"unpinned-uses", "template-injection"} <= {
        finding["ident"] for finding in json.loads(result.stdout)
    }


def test_shell_is_clean(tmp_path: Path) -> None:
    files = []
    for index, script in enumerate(step["run"] for step in JOB["steps"] if "run" in step):
        files.append(tmp_path / f"{index}.sh")
        files[-1].write_text(script + "\n")
    checked = run(tool("shellcheck"), "--shell=bash", *map(str, files))
    assert (checked.returncode, checked.stdout) == (0, "")


def test_least_privileges_and_pinned_actions() -> None:
    assert CONTENT["permissions"] == {"contents": "read"}
    assert CONTENT["concurrency"]["cancel-in-progress"] is True
    # A caller's usual group is its workflow's name and branch: the same one would cancel the caller.
    assert CONTENT["concurrency"]["group"].startswith("provision-")
    triggers = {"workflow_dispatch", "workflow_call", "pull_request", "schedule"}
    assert set(CONTENT[True]) == triggers  # YAML reads `on` as true
    actions = re.findall(r"uses: (.*)", TEXT)
    assert len(actions) == 3
    for action in actions:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v[0-9.]+", action)
    assert JOB["steps"][0]["with"]["persist-credentials"] is False
    assert JOB["strategy"]["fail-fast"] is False
    assert not any("${{" in step.get("run", "") for step in JOB["steps"])


def test_fork_code_never_runs_on_the_labs_machines() -> None:
    assert "head.repo.full_name == github.repository" in JOB["if"]
    assert "pull_request_target" not in TEXT


def test_jobs_are_of_environments_that_the_lab_has() -> None:
    entries = JOB["strategy"]["matrix"]["include"]
    for entry in entries:
        assert (FOLDER / "envs" / entry["environment"] / "conda-lock.yml").is_file()
    assert {entry["device"] for entry in entries} == {"require_gpu=true", "backend=gloo"}
    assert "PROVISION_TORCH_INDEX: ${{ vars.PROVISION_TORCH_INDEX }}" in TEXT


def test_evidence_of_a_failed_job_is_kept() -> None:
    """What runs after a failure always runs, and takes what there is."""
    for name in ("Collect the evidence", "Upload the evidence"):
        assert STEPS[name]["if"] == "always()"
    upload = STEPS["Upload the evidence"]["with"]
    assert upload["path"] == "${{ runner.temp }}/evidence"
    assert all(key in upload["name"] for key in ("environment", "runner"))


def variables(lab: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(lab),
        "PROVISION_ENVS": "envs",
        "PROVISION_DATA": str(lab / "data"),
        "ENVIRONMENT": "vision",
        "RUNNER_TEMP": str(lab / "temp"),
        "GITHUB_STEP_SUMMARY": str(lab / "summary.md"),
    }


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    folder = tmp_path / "a lab's"
    (folder / "envs" / "vision").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("passport", [True, False])
def test_collection_makes_page_and_summary(passport: bool, lab: Path) -> None:
    """The script as bash runs it, with the real command and the passport of a failed test."""
    command = Path(sysconfig.get_path("scripts")) / "provision"
    if not command.exists():
        pytest.skip("provision is not installed here")
    (lab / "tools").mkdir()
    (lab / "tools" / "provision").symlink_to(command)
    (lab / "envs" / "vision" / "conda-lock.yml").write_bytes(LOCK)
    if passport:
        document = evidence.passport(
            evidence.report(evidence.phase(verdict="fail", findings=[evidence.finding()])),
            name="vision",
        )
        document["lock"]["sha256"] = hashlib.sha256(LOCK).hexdigest()
        data = lab / "data" / project_folder(lab / "data", lab / "envs")
        evidence.write(data / "passports" / "vision" / "passport.json", document)
    environment = variables(lab)
    environment["PATH"] = f"{lab / 'tools'}:{environment['PATH']}"
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", STEPS["Collect the evidence"]["run"]],
        check=True,
        env=environment,
        cwd=lab,
    )
    files = {path.name for path in (lab / "temp" / "evidence").iterdir()}
    expected = (
        {"conda-lock.yml", "passport.json", "report.html"} if passport else {"conda-lock.yml"}
    )
    assert files == expected
    summary = (lab / "summary.md").read_text()
    assert ("smoke test in the prefix: fail" if passport else "vision was not built") in summary
    assert ("fail     barrier" in summary) is passport


def test_failed_lock_keeps_its_error(lab: Path) -> None:
    """The step and the collection as a shell runs them; a function in provision's place fails."""
    failing = "provision() { echo 'error: There is no environment' >&2; return 5; }\n"
    shell = ["bash", "-eo", "pipefail", "-c"]
    locked = subprocess.run(
        [*shell, failing + STEPS["Lock"]["run"]],
        env=variables(lab),
        cwd=lab,
        capture_output=True,
        text=True,
        check=False,
    )
    assert locked.returncode != 0 and "There is no environment" in locked.stdout
    collection = [*shell, STEPS["Collect the evidence"]["run"]]
    subprocess.run(collection, check=True, env=variables(lab), cwd=lab)
    assert (lab / "temp/evidence/lock.txt").read_text() == "error: There is no environment\n"
    assert "error: There is no environment\n```" in (lab / "summary.md").read_text()
