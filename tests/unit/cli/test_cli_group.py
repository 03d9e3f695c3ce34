from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from provision.cli.main import cli
from provision.verbs.lock.command import DefaultCommandGroup


@pytest.fixture
def command() -> click.Command:
    """`tool lock [NAME]` next to `tool lock verify`."""

    @click.command()
    @click.argument("name", required=False)
    @click.option("--again", is_flag=True, help="Once more.")
    def lock(name: str | None, again: bool) -> None:
        """Lock it."""
        click.echo(f"lock {name} {again}")

    group = DefaultCommandGroup(lock)

    @group.command()
    @click.argument("name")
    def verify(name: str) -> None:
        """Check it."""
        click.echo(f"verify {name}")

    tool = click.Group("tool")
    tool.add_command(group)
    return tool


@pytest.mark.parametrize(
    "arguments,output",
    [
        (["lock"], "lock None False"),
        (["lock", "lab"], "lock lab False"),
        (["lock", "--again", "lab"], "lock lab True"),
        (["lock", "lab", "--again"], "lock lab True"),
        (["lock", "verify", "lab"], "verify lab"),
        (["lock", "verify", "verify"], "verify verify"),
        (["lock", "--", "verify"], "lock verify False"),
        (["lock", "--again", "verify"], "lock verify True"),
    ],
)
def test_subcommand_or_default_runs(
    command: click.Command, arguments: list[str], output: str
) -> None:
    result = CliRunner().invoke(command, arguments)
    assert (result.exit_code, result.output.strip()) == (0, output)


@pytest.mark.parametrize("arguments", [["lock", "--help"], ["lock", "lab", "--help"]])
def test_help_shows_options_and_subcommands(command: click.Command, arguments: list[str]) -> None:
    help_text = CliRunner().invoke(command, arguments).output
    assert "tool lock [OPTIONS] [NAME] | COMMAND ..." in help_text
    assert "--again" in help_text and "Once more." in help_text
    assert "verify" in help_text and "Check it." in help_text


@pytest.mark.parametrize(
    "arguments,expected_words",
    [
        (["lock", "a", "b"], "Got unexpected extra argument (b)"),
        (["lock", "--agian"], "No such option"),
        (["lock", "verify"], "Missing argument 'NAME'"),
    ],
)
def test_usage_errors_name_the_intended_command(
    command: click.Command, arguments: list[str], expected_words: str
) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert expected_words in result.output


def test_lock_subcommands() -> None:
    help_text = CliRunner().invoke(cli, ["lock", "--help"]).output
    assert all(subcommand in help_text for subcommand in ("--relock", "--all", "verify", "export"))
