"""Writes docs/cli.md from the commands themselves; --check only compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from provision.cli.main import cli

PATH = Path(__file__).parent / "cli.md"
HEAD = (
    "# Command line\n\nMade from the commands by `python docs/make_cli.py`; a test compares it.\n"
)


def sections(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    context = click.Context(
        command, info_name=" ".join(path), max_content_width=110, terminal_width=110
    )
    yield f"\n## {' '.join(path)}\n\n```\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            verb = command.get_command(context, name)
            assert verb is not None
            yield from sections(verb, (*path, name))


def main() -> int:
    text = HEAD + "".join(sections(cli, ("provision",)))
    if "--check" in sys.argv:
        same = PATH.exists() and PATH.read_text() == text
        print(
            "docs/cli.md is current"
            if same
            else "docs/cli.md is stale: run python docs/make_cli.py"
        )
        return 0 if same else 1
    PATH.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
