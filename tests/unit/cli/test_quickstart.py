"""Every command of the quick starts is one that a test runs.

TESTED_BY names the file in which its verb runs for real. Dry runs run here as printed;
`test_change.py` runs the laptop's commands, `test_notebook.py` JupyterLab's, and
`test_quick_starts.py` those for clusters and registries. `test_documented_commands.py` has all pages.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from provision.cli.main import cli
from tests.paths import ROOT
from tests.programs import write_program
from tests.unit.cli.test_cli import VERBS

README = (ROOT / "README.md").read_text()
BY_PATH = {" ".join(path): command for path, command in VERBS}
TESTED_BY = {
    "add": "test_change.py",
    "build": "test_main_job.py",
    "doctor": "test_doctor_causes.py",
    "drift": "test_drift.py",
    "image build": "test_main_job.py",
    "image push": "test_image_signatures.py",
    "jobs list": "test_launch_slurm.py",
    "launch": "test_launch_slurm.py",
    "nodes check": "test_nodes_slurm.py",
    "nodes list": "test_nodes_slurm.py",
    "notebook": "test_notebook.py",
    "pack": "test_pack.py",
    "report": "test_report_nodes.py",
    "run": "test_activation.py",
    "ship": "test_ship_hosts.py",
    "smoke": "test_main_job.py",
    "status": "test_quickstart.py",
}
COMMAND = re.compile(r"^    (?:\$ )?provision (.+)$", re.MULTILINE)


def commands(page: Path) -> list[str]:
    """The commands of a page, without the comments behind them."""
    return [re.split(r"\s{2,}#", line)[0] for line in COMMAND.findall(page.read_text())]


def quick_start(title: str) -> list[str]:
    """The commands of one section of the quick starts."""
    text = (ROOT / "docs" / "quickstart.md").read_text()
    [section] = [part for part in text.split("\n## ") if part.startswith(f"{title}\n")]
    return COMMAND.findall(section)


def verb_of(words: list[str]) -> str:
    for length in (2, 1):
        path = " ".join(words[:length])
        if path in BY_PATH:
            return path
    return words[0]


@pytest.mark.parametrize("command", commands(ROOT / "docs" / "quickstart.md"))
def test_every_verb_of_a_quick_start_runs_in_a_test(command: str) -> None:
    verb = verb_of(shlex.split(command))
    path = ROOT / "tests" / "integration" / TESTED_BY[verb]
    if not path.exists():
        (path,) = (ROOT / "tests" / "unit").rglob(TESTED_BY[verb])
    assert ", ".join(f'"{word}"' for word in verb.split()) in path.read_text()


DRY_RUNS = {
    quick_start("Slurm")[3]: ("#SBATCH --nodes=2", "#SBATCH --time=04:00:00", "train.py"),
    quick_start("Kubernetes")[2]: ("kind: Job", "pool", "registry.lab:5000/ml/lab:1", "lab.train"),
}


# Two nodes each.
SINFO = """\
#!/bin/sh
case "$*" in
  *"%N|%n"*)
    echo 'n1|n1|n1|idle|(null)|gpu:8|64|1000|gpu|none'
    echo 'n2|n2|n2|idle|(null)|gpu:8|64|1000|gpu|none' ;;
  *"%a|%l|%s"*) echo 'up|infinite|1-infinite' ;;
  *"-h -o %R") echo gpu ;;
  *) echo "unexpected: $*" >&2; exit 1 ;;
esac
"""
READY = {"conditions": [{"type": "Ready", "status": "True"}]}
NODES = {"items": [{"metadata": {"name": name}, "status": READY} for name in ("k1", "k2")]}


@pytest.mark.parametrize("command, lines", DRY_RUNS.items(), ids=["Slurm", "Kubernetes"])
def test_dry_runs_print_the_job(
    command: str, lines: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As printed. Manifests are checked before they are printed."""
    for name in ("PROVISION_DATA", "PROVISION_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    write_program(tmp_path / "sinfo", SINFO)
    write_program(tmp_path / "kubectl", f"#!/bin/sh\necho '{json.dumps(NODES)}'\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PROVISION_ENVS", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envs" / "lab").mkdir(parents=True)
    request = "torch: '2.3'\ncuda: '12.1'\npython_from: channel\n"
    (tmp_path / "envs" / "lab" / "spec.yml").write_text(request)
    (tmp_path / "train.py").touch()
    assert "--dry-run" in command
    result = CliRunner().invoke(cli, shlex.split(command))
    assert result.exit_code == 0, result.output
    assert [line for line in lines if line not in result.stdout] == []


@pytest.mark.parametrize("title", ["A laptop or a workstation", "Jupyter"])
def test_builds_are_the_main_command_with_a_name(title: str) -> None:
    """CI runs that one as the README prints it."""
    [main] = re.findall(r"^python3 -m venv .*bin/provision (.*)$", README, re.MULTILINE)
    assert quick_start(title)[0] == main.replace("build ", "build lab ")


def test_completion_is_set_up_as_printed() -> None:
    """In a bash whose PATH is as the page's line before it sets it."""
    text = (ROOT / "docs" / "quickstart.md").read_text()
    [line] = re.findall(r"^    (eval .*)$", text, re.MULTILINE)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    answer = subprocess.run(
        ["bash", "--norc", "-c", f"{line}; complete -p provision"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_provision_completion" in answer.stdout


def test_status_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROVISION_DATA", "PROVISION_CACHE", "PROVISION_ENVS", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    result = CliRunner().invoke(cli, ["status"])
    assert result.exit_code == 0, result.output
    assert re.search(r"^  GPUs +\S", result.output, re.MULTILINE)
    assert re.search(r"^  engine +none: ", result.output, re.MULTILINE)
    assert "no environments" in result.output


def test_the_readme_is_one_screen_with_the_two_commands() -> None:
    assert len(README.splitlines()) <= 110
    assert len(re.findall(r"^python3 -m venv", README, re.MULTILINE)) == 2
