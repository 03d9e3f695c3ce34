"""Manual pages (man) of verbs, from their help."""

from __future__ import annotations

import re
from pathlib import Path

import click

from provision.core.atomic import atomic_write

PAGE = """\
.TH "{name}" 1
.SH NAME
{name} \\- {summary}
.SH SYNOPSIS
.nf
{usage}
.fi
.SH DESCRIPTION
.nf
{body}
.fi
"""


def write_pages(context: click.Context, folder: str) -> None:
    """Write the page of the command of this context, and of each verb below it, to folder/man1."""
    command = context.command
    context.terminal_width = 72
    text = re.sub(r"^(?=[.'])", r"\\&", context.get_help().replace("\\", r"\e"), flags=re.M)
    usage, _, body = text.partition("\n\n")
    sections = re.sub(r"^(\w[\w -]*):$", r'.fi\n.SH "\1"\n.nf', body, flags=re.M)
    page = PAGE.format(
        name=context.command_path.replace(" ", "-"),
        summary=command.get_short_help_str(200),
        usage=usage.removeprefix("Usage: "),
        body=sections,
    )
    atomic_write(Path(folder, "man1", f"{context.command_path.replace(' ', '-')}.1"), page)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            verb = command.get_command(context, name)
            assert verb is not None
            write_pages(click.Context(verb, parent=context, info_name=name), folder)
