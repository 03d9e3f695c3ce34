"""Writes docs/cli.md from the commands themselves; --check only compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from generated_page import write_or_check

from provision.cli.main import cli

PAGE = Path(__file__).parent / "cli.md"
HEAD = (
    "# Command line\n\nMade from the commands by `python docs/make_cli.py`; a test compares it. What `--json` prints "
    "is in [JSON](json.md).\n"
)


def sections(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    context = click.Context(
        command,
        info_name=" ".join(path),
        max_content_width=110,
        terminal_width=110,
        help_option_names=cli.context_settings["help_option_names"],
    )
    yield f"\n## {' '.join(path)}\n\n```\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            verb = command.get_command(context, name)
            assert verb is not None
            yield from sections(verb, (*path, name))


def page() -> str:
    return HEAD + "".join(sections(cli, ("provision",)))


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
