"""How the help of a verb reads: options in sections, an example, exit codes.

The verbs are made by click's decorators in their own modules. `dressed` gives each the same help.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import click

from provision.cli.options import make_optional
from provision.cli.other_tools import moved_option
from provision.cli.set_option import SetOption
from provision.cli.shared_options import ARGUMENTS, SHARED_OPTIONS

# What only one verb has comes first.
SECTIONS = (
    "Options",
    "Slurm",
    "Request",
    "Source",
    "Smoke",
    "Nodes",
    "Settings of --set",
    "Output",
)
# Of fewer options the help is one list.
SECTIONS_FROM = 14

SHARED = (
    "Exit codes: 0 fine, 1 a check failed, 2 usage. `provision --help` has the others, and the "
    f"options of all verbs ({', '.join(option.opts[0] for option in SHARED_OPTIONS)})."
)


@cache
def examples() -> dict[str, str]:
    """One example for each verb, as it is typed."""
    file = Path(__file__).with_name("examples.json")
    texts: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    return texts


class GroupedHelp(click.Command):
    """The help that all verbs have. Put before the class of a command."""

    path = ""  # as it is typed, without `provision`

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *SHARED_OPTIONS]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from provision.cli.project_name import with_name

        ctx.meta[ARGUMENTS] = tuple(args)
        try:
            return super().parse_args(ctx, with_name(self, self.path, ctx, args))
        except click.NoSuchOption as error:
            advice = moved_option(self.path, error.option_name)
            if advice is None:
                raise
            raise click.UsageError(advice, ctx) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [
            parameter
            for parameter in default_command(self).get_params(ctx)
            if isinstance(parameter, click.Option) and parameter not in SHARED_OPTIONS
        ]
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in SECTIONS}
        for option in options:
            row = option.get_help_record(ctx)
            if row is not None:
                has_sections = len(options) >= SECTIONS_FROM
                section = getattr(option, "section", "Options") if has_sections else "Options"
                sections[section].append(row)
            if isinstance(option, SetOption):
                sections["Settings of --set"] = option.help_rows()
        for title, rows in sections.items():
            if not rows:
                continue
            with formatter.section(title):
                formatter.write_dl(rows)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        if example := examples().get(self.path):
            formatter.write_text(f"Example: provision {example}")
        formatter.write_text(SHARED)


def default_command(command: click.Command) -> click.Command:
    """The command whose options a verb has: its own, or those of a group's default command."""
    default = getattr(command, "default", command)
    assert isinstance(default, click.Command)
    return default


def dressed(command: click.Command, path: str) -> click.Command:
    """A verb with our help; a group with all its verbs. path: as it is typed."""
    make_optional(default_command(command), path)
    if hasattr(command, "default"):
        command.default = dressed(command.default, path)
    if isinstance(command, click.Group):
        for name, verb in list(command.commands.items()):
            command.add_command(dressed(verb, f"{path} {name}"), name)
    if isinstance(command, GroupedHelp):
        return command
    # A verb that parses its arguments in its own way keeps that: only its help changes.
    kind = type(command)
    kind_with_help: type[GroupedHelp] = type(kind.__name__, (GroupedHelp, kind), {"path": path})
    result = kind_with_help.__new__(kind_with_help)
    vars(result).update(vars(command))
    return result
