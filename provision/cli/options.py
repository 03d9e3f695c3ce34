"""Options and arguments that several verbs have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

# The first argument of these is an environment, by another name.
TARGETS = {"lock export": "target", "channel mirror": "targets", "doctor": "subject"}


def option_group(
    *decorators: Callable[[Command], Command], section: str = ""
) -> Callable[[Command], Command]:
    """Several options as one decorator, in the order in which `--help` shows them.

    section: of the help of a verb that has many options.
    """

    def decorate(command: Command) -> Command:
        parameters: list[click.Parameter] = vars(command).setdefault("__click_params__", [])
        earlier = len(parameters)
        for decorator in reversed(decorators):
            command = decorator(command)
        if section:
            for parameter in parameters[earlier:]:
                vars(parameter)["section"] = section
        return command

    return decorate


def none_if_standard_output(
    _context: click.Context, _option: click.Parameter, file: Path | None
) -> Path | None:
    """A file, or None for the names of standard output, where the verb prints without a file."""
    return None if str(file) in ("-", "/dev/stdout") else file


def environment_parameter(command: click.Command, path: str) -> click.Argument | None:
    """The argument of a verb that may be left out; None if it takes no environment first."""
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            return parameter if parameter.name == TARGETS.get(path, "name") else None
    return None


def make_optional(command: click.Command, path: str) -> None:
    """Show an environment's argument as [NAME]."""
    parameter = environment_parameter(command, path)
    if parameter is None or not parameter.required:
        return
    parameter.required = False
    if parameter.metavar is not None:
        first, dots, _ = parameter.metavar.partition("...")
        parameter.metavar = f"[{first}]{dots}"


class WordsBeforeOptions(click.Command):
    """A verb that parses its arguments in its own way."""

    def leading_words(self, context: click.Context, args: list[str]) -> tuple[list[str], bool]:
        """The arguments to which `--` puts an end, and whether it does."""
        raise NotImplementedError


environment_argument = click.argument("name")
prefix_option = click.option(
    "--prefix",
    type=click.Path(path_type=Path),
    help="Folder of the environment.  [default: in the user's data folder]",
)
relock_option = click.option("--relock", is_flag=True, help="Solve again and replace the lock.")
all_option = click.option(
    "--all",
    "every",
    is_flag=True,
    help="Do this for every environment in the envs folder, several in parallel.",
)
dry_run_option = option_group(
    click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing."),
    section="Output",
)
mount_option = click.option(
    "--mount",
    "mounts",
    multiple=True,
    metavar="HOST:CONTAINER[:ro]",
    help="Mount a folder or a named volume into the image. Repeatable.",
)
time_option = click.option(
    "--time",
    metavar="TIME",
    help="Time limit: 90m, 4h, 2d, or as Slurm writes it (minutes, H:MM:SS, D-HH).",
)
yes_option = click.option(
    "-y", "--yes", is_flag=True, help="Remove without asking; required without a terminal."
)
output_file_option = option_group(
    click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        callback=none_if_standard_output,
        help="File to write.  [default: standard output]",
    ),
    section="Output",
)
# Where to fetch from; never part of a spec or a lock.
build_env_option = click.option(
    "--build-env",
    multiple=True,
    metavar="NAME",
    help=(
        "Pass this variable to builds of packages (from git, a project's folder or an sdist). "
        "Repeatable."
    ),
)

mirror_option = option_group(
    click.option(
        "--mirror",
        "mirrors",
        multiple=True,
        metavar="WHAT=URL|DIR",
        help="Fetch WHAT (a channel's name or URL, `*` for all channels, or `pypi`) from URL "
        "instead. DIR, made by `channel mirror`, has the files of its locks. Repeatable.",
    ),
    section="Source",
)
# The name is that of a field of SmokeRequest.
quick_option = option_group(
    click.option(
        "--quick",
        "profile",
        flag_value="quick",
        default=None,
        help="Run a short smoke test: fewer sizes, fewer iterations.",
    ),
    section="Smoke",
)
