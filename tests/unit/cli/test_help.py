"""The help of verbs."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from provision.cli.help import examples
from provision.cli.main import cli
from tests.unit.cli.test_cli import VERBS

BY_PATH = {" ".join(path): command for path, command in VERBS}
# Commands of the command line itself.
WITHOUT_EXAMPLE = {"completion", "help"}


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PROVISION_DATA", "PROVISION_CACHE", "PROVISION_ENVS"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    for name in ("lab", "lab2", "other"):
        folder = tmp_path / "provision_envs" / name
        folder.mkdir(parents=True)
        (folder / "spec.yml").write_text('torch: "2.3"\ncuda: "12.1"\n')
    return tmp_path / "provision_envs"


@pytest.mark.parametrize("path", sorted(set(BY_PATH) - WITHOUT_EXAMPLE))
def test_every_verb_shows_an_example_that_it_accepts(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsed only: nothing runs, and no file is there."""
    assert path in examples(), (
        f"add an example of `provision {path}` to provision/cli/examples.json"
    )
    output = " ".join(CliRunner().invoke(cli, [*path.split(), "--help"]).output.split())
    assert f"Example: provision {examples()[path]}" in output
    assert "Exit codes: 0 fine, 1 a check failed" in output
    words = shlex.split(examples()[path])
    assert words[: len(path.split())] == path.split()
    command = BY_PATH[path]
    for parameter in command.params:
        if isinstance(parameter.type, click.Path):
            monkeypatch.setattr(parameter.type, "exists", False)
    context = command.make_context(path, words[len(path.split()) :])
    missing = [
        parameter.name
        for parameter in command.params
        if parameter.required and context.params.get(parameter.name or "") in (None, ())
    ]
    assert missing == []


@pytest.mark.parametrize("path", ["jobs log", "jobs cancel"])
def test_the_example_names_a_job_of_an_engine(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    result = CliRunner().invoke(cli, shlex.split(examples()[path]))
    assert result.exit_code == 9  # not 3: Slurm is asked, and is missing here


def test_every_verb_stands_in_one_section() -> None:
    output = CliRunner().invoke(cli, ["--help"]).output
    for name in cli.list_commands(click.Context(cli)):
        assert output.count(f"\n  {name} ") == 1, name


def headings(*words: str) -> list[str]:
    output = CliRunner().invoke(cli, [*words, "--help"]).output
    return [line[:-1] for line in output.splitlines() if line.endswith(":") and line[0] != " "]


def test_the_options_of_large_verbs_are_in_groups() -> None:
    assert headings("build") == ["Options", "Request", "Source", "Smoke", "Output"]
    assert headings("smoke") == ["Options"]
    assert headings("env", "list") == ["Options"]
    # Of a job, not of a test; of a container, not of a build.
    assert headings("launch") == ["Options", "Slurm", "Nodes", "Settings of --set", "Output"]
    assert headings("image", "contract") == ["Options", "Settings of --set"]
    # A group with options of its own.
    assert headings("lock") == ["Options", "Request", "Source", "Smoke", "Output", "Commands"]


def test_help_shows_the_help_of_a_verb() -> None:
    for words in (["build"], ["env", "tree"], ["lock", "verify"], []):
        wanted = CliRunner().invoke(cli, [*words, "--help"]).output
        assert CliRunner().invoke(cli, ["help", *words]).output == wanted
    result = CliRunner().invoke(cli, ["help", "builx"])
    assert result.exit_code == 2 and "build" in result.output


def test_manual_pages_are_the_help(tmp_path: Path) -> None:
    arguments = ["help", "--man", str(tmp_path)]
    result = CliRunner().invoke(cli, arguments, prog_name="provision")
    assert result.output == f"man -M {tmp_path} provision\n"
    pages = {path.name: path.read_text() for path in (tmp_path / "man1").iterdir()}
    assert {"provision.1", "provision-facts.1", "provision-facts-show.1"} <= pages.keys()
    page = pages["provision-facts-show.1"]
    assert page.startswith('.TH "provision-facts-show" 1\n.SH NAME\nprovision-facts-show \\- ')
    assert "\n.SH SYNOPSIS\n.nf\nprovision facts show [OPTIONS]" in page
    assert '\n.SH "Options"\n.nf\n  -' in page
