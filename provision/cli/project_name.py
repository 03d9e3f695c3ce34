"""NAME may be left out: the project has a default environment.

All verbs are given this in one place, before their arguments are parsed. What follows NAME (packages,
a command, a folder) is told from it by the environments that exist: a word that is the name of one is
NAME. Words before `--` are NAME, those after it are not.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click

from provision.cli.options import WordsBeforeOptions, environment_parameter
from provision.cli.shared_options import shared_value
from provision.core.errors import ProvisionError
from provision.core.paths import Folders, default_folders
from provision.core.prefix_registry import list_prefixes
from provision.core.project import FILE, described_names, project_root, settings_of
from provision.core.similar_names import did_you_mean
from provision.workflow.project import owners, settle

# These take a request instead of an environment, where an option makes or names one.
REQUESTS = {"build", "lock", "render", "matrix explain"}
INSTEAD = ("torch", "every")
# `doctor` and `nodes check` go without an environment of their own accord.
DOCTOR, WITHOUT = "doctor", "nodes check"
# These change what is shared: in another project only where --envs names it.
CHANGES = {*REQUESTS, "add", "remove", "update", "env create"}
HELP = {"-h", "--help"}
FOLDERS, NOTES = "provision.folders", "provision.notes"


def project_folders(context: click.Context, envs: Path | None) -> Folders:
    """The folders of the project in which the command works, with what belongs to it there."""
    if FOLDERS not in context.meta:
        context.meta[FOLDERS], notes = settle(default_folders(envs))
        context.meta.setdefault(NOTES, []).extend(notes)
    folders: Folders = context.meta[FOLDERS]
    return folders


def with_name(
    command: click.Command, path: str, context: click.Context, args: list[str]
) -> list[str]:
    """The arguments of a verb with the name of the environment in front, if they leave it out.

    Raises click.UsageError where it cannot be decided what was left out.
    """
    parameter = environment_parameter(command, path)
    if parameter is None or path == WITHOUT or context.resilient_parsing:
        return args
    separator = "--" in args
    if isinstance(command, WordsBeforeOptions):
        tokens, separator = command.leading_words(context, args)
    else:
        tokens = args[: args.index("--")] if separator else args
    if not HELP.isdisjoint(tokens):
        return args
    values, _, _ = command.make_parser(context).parse_args(list(tokens))
    envs = Path(values["envs"]) if values.get("envs") else shared_value(context, "envs")
    try:
        folders = project_folders(context, envs)
        typed = _Typed(path, context, folders, values, described_names(folders.envs))
        arguments = [p for p in command.params if isinstance(p, click.Argument)]
        name = typed.omitted_name(arguments, has_separator=separator)
    except (OSError, ProvisionError) as error:
        from provision.cli.console import Console
        from provision.core.system_errors import from_system

        problem = from_system(error) if isinstance(error, OSError) else error
        as_json = values.get("as_json") or shared_value(context, "as_json")
        Console(as_json=bool(as_json)).error(problem)
        sys.exit(problem.exit_code)
    return args if name is None else [name, *args]


class _Typed(NamedTuple):
    """What was typed after a verb. values: of its options and arguments, up to `--`. names: of the
    project's environments."""

    path: str
    context: click.Context
    folders: Folders
    values: Mapping[str, Any]
    names: Sequence[str]

    def omitted_name(
        self, arguments: Sequence[click.Argument], *, has_separator: bool
    ) -> str | None:
        """The name to put in front; None if the words have it, or the verb goes without."""
        tokens: list[str] = []
        for argument in arguments:
            value = self.values.get(str(argument.name))  # perhaps click's mark of none
            if isinstance(value, (str, tuple)):
                tokens += [value] if isinstance(value, str) else value
        if self.path == DOCTOR:
            # Of this machine; with the default environment, where one is installed.
            options = any(map(self.values.get, ("on", "prefix")))
            default = None if tokens or options else self._default()
            return default if default in list_prefixes(self.folders) else None
        if not tokens:
            is_request = self.path in REQUESTS
            if is_request and (not self.names or any(map(self.values.get, INSTEAD))):
                return None
            return self._default() or self._refuse_to_choose()
        first, rest = tokens[0], arguments[1:]
        required = sum(argument.required for argument in rest)
        if self.path == "add":
            required = int(not (self.values.get("files") or self.values.get("editables")))
        lacks = len(tokens) <= required
        if first in {*self.names, *list_prefixes(self.folders)} or self.values.get("prefix"):
            return None
        is_name = has_separator or not rest
        if (is_name or not lacks) and (self._is_of_other_project(first) or is_name):
            return None
        default = self._default()
        if lacks:
            return default or self._refuse_to_choose()
        is_complete = rest[0].nargs != -1 and len(tokens) > len(rest)
        if default is None or is_complete:
            return None
        if rest[0].name == "folder":
            return default if Path(first).is_dir() else None
        question = did_you_mean(first, self.names)
        if question:
            verb = f"provision {self.path}"
            raise click.UsageError(
                f"`{first}` is not an environment. {question}Write one of:\n"
                f"  {verb} {shlex.join([question.split('`')[1], *tokens[1:]])}\n"
                f"  {verb} {shlex.join([default, *tokens])}",
                self.context,
            )
        return default

    def _default(self) -> str | None:
        """The environment that is meant where none is named. Raises click.UsageError if the
        project's settings name one that does not exist."""
        file, settings = settings_of(self.folders.envs) or (None, {})
        default = settings.get("default")
        if default and default not in self.names:
            raise click.UsageError(
                f'{file} says `default = "{default}"`, and {self.folders.envs} has no such '
                f"environment. {did_you_mean(default, self.names)}Environments: "
                f"{', '.join(self.names) or 'none'}.",
                self.context,
            )
        return default or (self.names[0] if len(self.names) == 1 else None)

    def _refuse_to_choose(self) -> NoReturn:
        envs = self.folders.envs
        problem = "no environment. `provision init` proposes one."
        if self.names:
            problem = (
                f"several environments: {', '.join(self.names)}. Name one; or write "
                f'`default = "{self.names[0]}"` into {project_root(envs) / FILE}, and NAME may be '
                "left out."
            )
        raise click.UsageError(f"NAME is missing, and {envs} has {problem}", self.context)

    def _is_of_other_project(self, name: str) -> bool:
        """Whether an environment of that name is installed in other projects. Outside of projects,
        the command then works in that one. Raises click.UsageError if there are several."""
        projects = owners(self.folders, name)
        given = self.values.get("envs") or shared_value(self.context, "envs")
        if given or self.path in CHANGES or self.names:
            return bool(projects)
        if len(projects) > 1:
            raise click.UsageError(
                f"Several projects have an environment `{name}`: {', '.join(map(str, projects))}. "
                "Go to one, or name its folder with --envs.",
                self.context,
            )
        for envs in projects:
            self.context.meta["provision.envs"] = envs
            self.context.meta.pop(FOLDERS)
            self.context.meta[NOTES].append(f"{name} of the project {project_root(envs)}")
        return bool(projects)
