"""Writes docs/cli.md, and the table of what shells complete, from the commands themselves; --check
only compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from generated_page import write_or_check

from provision.cli.main import VERBS, cli
from provision.cli.shared_options import SHARED_OPTIONS

PAGE = Path(__file__).parent / "cli.md"
HEAD = (
    "# Command line\n\nMade from the commands by `python docs/make_cli.py`; a test compares it. What `--json` prints "
    "is in [JSON](json.md).\n"
)


def sections(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
    context = click.Context(
        command,
        info_name=" ".join(path),
        max_content_width=90,
        terminal_width=90,
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


# What is completed of a text, by the name of the parameter. Environments are, also where a file or
# another thing can be named.
COMPLETED = {
    **dict.fromkeys(("name", "subject", "target", "targets", "before", "after"), "@names"),
    "verb": "|".join(VERBS),
}


def kind(parameter: click.Parameter) -> str:
    """As cli/completion.py has it; empty for a flag."""
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return ""
    repeats = "..." if parameter.nargs == -1 or parameter.multiple else ""
    if isinstance(parameter.type, click.Choice):
        return "|".join(parameter.type.choices) + repeats
    if isinstance(parameter.type, click.Path):
        return ("@file" if parameter.type.file_okay else "@dir") + repeats
    if parameter.type is click.UNPROCESSED:
        return "@command"
    if type(parameter.type) is type(click.STRING):
        return COMPLETED.get(str(parameter.name), "@text") + repeats
    return "@text" + repeats


def blocks(command: click.Command, path: str) -> Iterator[str]:
    """The table's lines of a verb, then of those below it."""
    yield f"= {path}"
    verbs = getattr(command, "commands", {})
    context = click.Context(command)
    if isinstance(command, click.Group):
        verbs = {
            name: command.get_command(context, name) for name in command.list_commands(context)
        }
    for name, verb in verbs.items():
        yield f"{name}\t{verb.get_short_help_str(200)}"
    for parameter in getattr(command, "default", command).params:
        if isinstance(parameter, click.Argument):
            yield f"< {kind(parameter)}"
        elif isinstance(parameter, click.Option) and not parameter.hidden:
            if path and parameter in SHARED_OPTIONS:
                continue
            flags = ",".join([*parameter.opts, *parameter.secondary_opts])
            help = " ".join((parameter.help or "").split())
            yield f"{flags} {kind(parameter)}".strip() + f"\t{help}"
    if not path:
        yield "-h,--help\tShow this message and exit."
    for name, verb in verbs.items():
        yield from blocks(verb, f"{path} {name}".strip())


def table() -> str:
    return "".join(f"{line}\n" for line in blocks(cli, ""))


if __name__ == "__main__":
    table_file = PAGE.parent.parent / "provision" / "cli" / "completion.txt"
    sys.exit(write_or_check(PAGE, page()) | write_or_check(table_file, table()))
