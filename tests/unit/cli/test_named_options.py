"""Every option that findings, errors, help and documentation name exists in the verb they name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from provision.cli.help import default_command
from provision.cli.main import cli
from provision.core.yaml_text import parse_yaml
from provision.verbs.image.command import ContainerSettings
from provision.verbs.launch.settings import LaunchSettings
from provision.verbs.ship.command import ShipSettings
from provision.workflow.smoke.request import SETTINGS
from provision_runtime.report import findings
from tests.conftest import ROOT

# `provision VERB ... --option`, up to the end of the code or sentence.
_COMMAND = re.compile(r"\bprovision ((?:[a-z]+ )+)([^`\n;|#]*)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# Options of docker run and similar tools, in advice.
FOREIGN = {
    "--ipc",
    "--uts",
    "--shm-size",
    "--tmpfs",
    "--ulimit",
    "--gpus",
    "--cap-add",
    "--cpus-per-task",
    "--nproc-per-node",
}


def command_at(words: list[str]) -> click.Command | None:
    """The deepest command that the words name; None if the first is no verb."""
    command: click.Command = cli
    for word in words:
        if not isinstance(command, click.Group):
            break
        below = command.get_command(click.Context(command), word)
        if below is None:
            break
        command = below
    return None if command is cli else command


def options_of(command: click.Command) -> set[str]:
    names = {"--help", "--version"}
    for parameter in command.get_params(click.Context(command)):
        names.update(parameter.opts)
        names.update(parameter.secondary_opts)
    return names


def named_options(text: str) -> Iterator[tuple[click.Command, str]]:
    for match in _COMMAND.finditer(text):
        command = command_at(match[1].split())
        arguments = f" {match[2]}".partition(" -- ")[0].partition("provision ")[0]
        if command is not None and not isinstance(command, click.Group):
            for option in _OPTION.findall(arguments):
                yield command, option


FILES = [
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "README.md",
    *sorted((ROOT / "provision").rglob("*.py")),
    *sorted((ROOT / "provision_runtime").rglob("*.py")),
    ROOT / "provision_runtime" / "report" / "findings.json",
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_options_exist(path: Path) -> None:
    for command, option in named_options(path.read_text(encoding="utf-8")):
        assert option in options_of(command), f"provision {command.name} has no {option}"


@pytest.mark.parametrize("text", [*FILES, *findings.CATALOG.values()], ids=str)
def test_named_settings_exist(text: Path | findings.Rule) -> None:
    words = text.read_text() if isinstance(text, Path) else f"{text.meaning} {text.advice}"
    known = {*SETTINGS, "KEY"}
    for kind in (LaunchSettings, ShipSettings, ContainerSettings):
        known.update(field.name for field in dataclasses.fields(kind))
    assert {*re.findall(r"--set[ =](\w+)=", words)} <= known


def test_smoke_has_the_options_that_findings_advise() -> None:
    """Those of doctor alone may also name doctor's options."""
    smoke, doctor = command_at(["smoke"]), command_at(["doctor"])
    assert smoke is not None and doctor is not None
    of_smoke = {id for rules in findings.BY_PHASE.values() for id in rules}
    for id, rule in findings.CATALOG.items():
        options = options_of(smoke) if id in of_smoke else options_of(doctor)
        for option in _OPTION.findall(_COMMAND.sub("", f"{rule.meaning} {rule.advice}")):
            assert option in FOREIGN or option in options, rule


def test_a_moved_option_is_answered_by_a_verb_that_lacks_it() -> None:
    moved = parse_yaml((ROOT / "provision" / "cli" / "moved_options.yml").read_text())
    for path, forms in moved.items():
        command = command_at(["build" if path == "*" else path][0].split())
        assert command is not None, path
        for option, form in forms.items():
            assert option not in options_of(default_command(command)), (path, option)
            result = CliRunner().invoke(cli, [*path.replace("*", "build").split(), option])
            assert (result.exit_code, form in result.stderr) == (2, True), (path, option)
            for named in _OPTION.findall(form) if form.startswith("-") else ():
                assert named in {*options_of(default_command(command)), *FOREIGN}, (path, form)
