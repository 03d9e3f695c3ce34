"""What shells complete, without click, and what is recorded for that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from provision.cli import completion, records
from provision.cli.main import cli
from tests.unit.cli.test_cli import VERBS


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Environments in the envs folder of a project, which is the working folder."""
    for name in [name for name in os.environ if name.startswith(records.VARIABLES)]:
        monkeypatch.delenv(name)
    for name in ("HOME", "PROVISION_DATA", "PROVISION_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr(records, "START", dict(os.environ))
    monkeypatch.setattr(records, "SETTLED_NS", -(10**12))
    envs = tmp_path / "project" / "envs"
    for name in ("lab", "lab2", "other"):
        (envs / name).mkdir(parents=True)
        (envs / name / "spec.yml").write_text('torch: "2.3"\ncuda: "12.1"\n')
    monkeypatch.chdir(envs.parent)
    return envs


def completed(*words: str) -> list[str]:
    """What a shell may put in place of the last word."""
    return [value for _, value, _ in completion.complete(words[:-1], words[-1])]


@pytest.mark.parametrize(
    "line,values",
    [
        ("smoke la", ["lab", "lab2"]),
        ("env tree o", ["other"]),
        ("lock oth", ["other"]),
        ("lock ver", ["verify"]),
        ("lock --relock oth", ["other"]),
        ("env list --envs /nonexistent ", []),
        ("env diff --envs=/nonexistent ", []),
        ("build --source w", ["wheels"]),
        ("build --source = w", ["wheels"]),
        ("build --source=w", ["wheels"]),
        ("build --source ", ["auto", "wheels", "pytorch", "conda-forge"]),
        ("build --torch ", []),
        ("build lab --dry", ["--dry-run"]),
        ("build lab --dry-run --dry", []),
        ("clean --only cache --on", ["--only"]),
        ("env tr", ["tree"]),
        ("stat", ["status"]),
        ("help stat", ["status"]),
        ("report la", ["lab", "lab2"]),
        ("env diff lab ", []),
        ("run l", ["lab", "lab2"]),
        ("run lab --imag", ["--image"]),
        ("run lab python --imag", []),
        ("run lab -- l", []),
        ("nonsense l", []),
        ("--json env li", ["list"]),
    ],
)
def test_shells_complete(line: str, values: list[str]) -> None:
    assert completed(*line.split(" ")) == values


HELP = {"-h", "--help"}


def test_all_options_and_verbs_are_completed() -> None:
    """As by click, which reads the commands themselves."""
    by_click = ShellComplete(cli, {}, "provision", "_PROVISION_COMPLETE")
    for path, _ in VERBS:
        if path not in (("help",), ("completion",)):  # without the options of all verbs
            options = [item.value for item in by_click.get_completions([*path, "x"], "-")]
            # click keeps the names of the help option that a command had at its first use.
            assert {*completed(*path, "-")} - HELP == {*options} - HELP
            assert {*completed(*path, "-")} >= HELP


def test_a_file_is_for_the_shell_to_complete() -> None:
    assert completion.complete(["build", "--prefix"], "/o") == [("file", "/o", "")]
    assert completion.complete(["lab", "check"], "/o") == [("dir", "/o", "")]


def test_names_are_recorded_until_they_change(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed("smoke", "l") == ["lab", "lab2"]
    monkeypatch.setattr(completion, "_folders", pytest.fail)
    assert completed("smoke", "l") == ["lab", "lab2"]
    monkeypatch.undo()


@pytest.mark.parametrize("change", ["new", "spec", "installed", "settings"])
def test_a_record_that_is_not_true_is_not_used(change: str, lab: Path) -> None:
    assert completed("smoke", "l") == ["lab", "lab2"]
    if change == "new":
        (lab / "lab3").mkdir()
        (lab / "lab3" / "spec.yml").touch()
    elif change == "spec":
        (lab / "lab2" / "spec.yml").unlink()
    elif change == "installed":
        from provision.core.paths import default_folders

        (default_folders().prefixes / "lab3").mkdir(parents=True)
    else:
        (lab.parent / "elsewhere" / "lab3").mkdir(parents=True)
        (lab.parent / "elsewhere" / "lab3" / "spec.yml").touch()
        (lab.parent / "provision.toml").write_text('envs = "elsewhere"\n')
    names = {"spec": ["lab"], "settings": ["lab3"]}.get(change, ["lab", "lab2", "lab3"])
    assert completed("smoke", "l") == names


def test_a_broken_settings_file_completes_nothing(lab: Path) -> None:
    (lab.parent / "provision.toml").write_text("envs =\n")
    assert completed("smoke", "l") == []


@pytest.mark.parametrize(
    "shell,line,word,output",
    [
        ("bash", "provision smoke 'la", "2", "plain,lab\nplain,lab2\n"),
        ("bash", "provision\nbuild\n--source\n=\nw", "4", "plain,wheels\n"),
        ("bash", "provision build --source=w", "2", "plain,wheels\n"),
        ("zsh", "provision build --source=w", "2", "plain\n--source=wheels\n_\n"),
        ("zsh", "provision stat", "1", "plain\nstatus\nShow this machine at a glance"),
        ("fish", "provision smoke la", "la", "plain,lab\nplain,lab2\n"),
        ("fish", "provision stat", "stat", "plain,status\tShow this machine at a glance"),
    ],
)
def test_each_shell_gets_its_form(shell: str, line: str, word: str, output: str) -> None:
    """In a process that imports little."""
    variables = {"_PROVISION_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": word}
    script = (
        "import sys\n"
        "from provision.cli.start import main\n"
        "main()\n"
        "print(*sorted(sys.modules), file=sys.stderr)\n"
    )
    for _ in range(2):
        result = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **variables},
        )
        assert result.stdout.startswith(output)
    heavy = {"click", "rattler", "docker", "jinja2", "rich", "provision.catalog"}
    assert heavy.isdisjoint(result.stderr.split())


@pytest.mark.needs("bash")
def test_bash_completes_by_the_printed_script(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "provision"
    program.parent.mkdir()
    code = "from provision.cli.start import main; main()"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{code}' \"$@\"\n")
    program.chmod(0o755)
    (tmp_path / "script").write_text(CliRunner().invoke(cli, ["completion", "bash"]).output)
    command = (
        f"source '{tmp_path}/script'; COMP_WORDS=(provision env tr); COMP_CWORD=2; "
        '_provision_completion provision; echo "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    output = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, env=env
    )
    assert output.stdout == "tree\n"
