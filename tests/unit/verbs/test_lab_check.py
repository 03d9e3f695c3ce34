"""Checks of a lab's repository."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from provision.cli.main import cli
from tests.paths import ROOT

EXAMPLE = ROOT / "examples" / "lab"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sample lab, on a machine without Slurm's commands."""
    shutil.copytree(EXAMPLE, tmp_path / "lab")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "lab"


def check(*words: str) -> tuple[Result, dict[str, str]]:
    result = CliRunner().invoke(cli, ["lab", "check", *words, "--json"])
    rows = json.loads(result.stdout).get("problems", [])
    return result, {row["subject"]: row["message"] for row in rows}


def test_the_sample_labs_workflow_is_what_its_first_line_makes(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lab)
    workflow = lab / ".github" / "workflows" / "provision.yml"
    first_line = workflow.read_text().splitlines()[0]
    words = shlex.split(first_line.partition("remake with: provision ")[2])
    made = workflow.read_bytes()
    result = CliRunner().invoke(cli, [*words, "--force"])
    assert (result.exit_code, workflow.read_bytes()) == (0, made), result.output
    jobs = CliRunner().invoke(cli, [*words[: words.index("--output")], "--jobs"]).output
    assert "A100" in jobs and "no source says" not in jobs


def test_the_sample_lab_is_valid(lab: Path) -> None:
    result, rows = check("lab")
    assert (result.exit_code, rows) == (0, {}), result.output
    text = CliRunner().invoke(cli, ["lab", "check", "lab"]).stdout
    assert text == "vision: nothing wrong; hosts and clusters were not asked\n"


@pytest.mark.parametrize(
    "file,before,after,subject,message",
    [
        ("nodes.yml", "gpu:", "gpus:", "clusters.main.nodes", "`gpu` is not a group in nodes.yml"),
        ("nodes.yml", "from: slurm, partition: gpu", "from: ssh, hosts: n1", "clusters.main.nodes",
         "is from ssh, not slurm"),
        ("nodes.yml", "schema: 1", "schema: 3", "nodes.yml", "nodes.yml:2: schema"),
        ("lab.yml", "nodes: desks", "nodes: 'desk['", "clusters.desks.nodes", "is not a node set"),
        ("lab.yml", "  train:", "  tune:", "environments.tune", "There is no environment `tune`"),
        ("envs/train/spec.yml", "0.22.0", "0.21.0", "environments.train",
         "its lock is not of its spec.yml"),
        ("envs/train/spec.yml", 'cuda: "12.6"', 'cuda: "13.9"', "environments.train",
         "There is no build"),
        ("envs/train/conda-lock.yml", "provision_portable: 'true'", "provision_portable: 'false'",
         "environments.train", "its lock is not portable"),
        ("runners.yml", "gpus: 2", "gpus: two", "runners.yml", "runners.yml:10"),
        ("lab.yml", "  train:", f"  train: {{image: '-v/:/h@sha256:{'0' * 64}'}}",
         "environments.train", "is not a reference to a registry"),
    ],
)  # fmt: skip
def test_a_mistake_fails_the_check(
    lab: Path, file: str, before: str, after: str, subject: str, message: str
) -> None:
    text = (lab / file).read_text()
    (lab / file).write_text(text.replace(before, after))
    result, rows = check("lab")
    assert result.exit_code == 1
    assert message in rows[subject]


@pytest.mark.parametrize(
    "file,before,after,advice",
    [
        ("envs/train/conda-lock.yml", "provision_python_from: channel",
         "provision_python_from: host", "on a machine where a conda channel answers: provision lock train"),
        ("envs/train/conda-lock.yml", "x", "x", "by a git address"),
        ("lab.yml", "engine: slurm", "engine: kubernetes", "Or write k8s:SELECTOR."),
    ],
)  # fmt: skip
def test_what_is_advised_works(lab: Path, file: str, before: str, after: str, advice: str) -> None:
    lock = lab / "envs" / "train" / "conda-lock.yml"
    lock.write_text(lock.read_text().replace("portable: 'true'", "portable: 'false'"))
    (lab / "lab.yml").write_text((lab / "lab.yml").read_text().replace("nodes: gpu", "nodes: gpus"))
    spec = lock.with_name("spec.yml")
    if after.endswith("host"):
        spec.write_text(spec.read_text().replace("python_from: channel\n", ""))
    assert before in (lab / file).read_text()
    (lab / file).write_text((lab / file).read_text().replace(before, after))
    problems = json.loads(check("lab")[0].stdout)["problems"]
    assert any(advice in row["advice"] for row in problems)


def test_a_malformed_lab_yml_is_an_error(lab: Path) -> None:
    (lab / "lab.yml").write_text("schema: 1\nname: vision\n")
    result, _ = check("lab")
    assert result.exit_code == 3
