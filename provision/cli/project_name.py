"""NAME may be left out: the project has a default environment.

All verbs are given this in one place, before their arguments are parsed. What follows NAME (packages,
a command, a folder) is told from it by the environments that exist. Words before `--` are NAME, those
after it are not; what could be either is refused, with both forms.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from provision.cli.completion import described_names, locked_packages
from provision.cli.options import WordsBeforeOptions, environment_parameter
from provision.cli.shared_options import shared_value
from provision.core.errors import ProvisionError
from provision.core.paths import Folders, default_folders
from provision.core.prefix_registry import list_prefixes, prefix_path
from provision.core.project import (
    FILE,
    has_environments,
    project_root,
    recorded_projects,
    settings_of,
)
from provision.core.similar_names import did_you_mean
from provision.workflow.project import owners, settle

# These go without an environment of their own accord, or make one.
REQUESTS = ("build", "lock", "render", "matrix explain")
WITHOUT = ("nodes check",)
# These change what is shared: in another project only where --envs names it.
CHANGES = (*REQUESTS, "add", "remove", "update", "env create")
# Options of a request that describe another environment, or name all.
INSTEAD = ("torch", "every")
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
    if parameter is None or path in WITHOUT or context.resilient_parsing:
        return args
    head, has_separator = args, "--" in args
    if has_separator:
        head = args[: args.index("--")]
    if isinstance(command, WordsBeforeOptions):
        head, has_separator = command.leading_words(context, args)
    values, _, _ = command.make_parser(context).parse_args(list(head))
    if not HELP.isdisjoint(head):
        return args
    envs = Path(values["envs"]) if values.get("envs") else shared_value(context, "envs")
    try:
        folders = project_folders(context, envs)
        words = _Words(
            path=path,
            context=context,
            folders=folders,
            rest=[p for p in command.params if isinstance(p, click.Argument) and p != parameter],
            words=_typed(command, values),
            values=values,
            has_separator=has_separator,
        )
        name = words.omitted_name(parameter)
    except (OSError, ProvisionError):  # the verb raises it too
        return args
    return args if name is None else [name, *args]


def _typed(command: click.Command, values: Mapping[str, Any]) -> list[str]:
    """The words of all arguments, in their order."""
    words: list[str] = []
    for parameter in command.params:
        value = values.get(parameter.name or "")
        if isinstance(parameter, click.Argument) and isinstance(value, (str, tuple)):
            words += [value] if isinstance(value, str) else [w for w in value if w is not None]
    return words


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Words:
    """What was typed after a verb. rest: the arguments after NAME. words: before `--`. values: of
    the options, by name."""

    path: str
    context: click.Context
    folders: Folders
    rest: Sequence[click.Argument]
    words: Sequence[str]
    values: Mapping[str, Any]
    has_separator: bool

    def omitted_name(self, parameter: click.Argument) -> str | None:
        """The name to put in front; None if the words have it, or the verb goes without."""
        names = described_names(self.folders)
        if self.path == "doctor":
            # Examines this machine, and the default environment where one is installed.
            options = ("explain", "on", "prefix")
            is_alone = not (self.words or any(map(self.values.get, options)))
            return self._default(names) if is_alone and self._is_installed(names) else None
        if not self.words:
            if self.path in REQUESTS and (not names or any(map(self.values.get, INSTEAD))):
                return None
            return self._default(names) or self._refuse_without_default(names)
        first = self.words[0]
        if first in {*names, *list_prefixes(self.folders)}:
            self._refuse_either(first, names)
            return None
        if self.values.get("prefix") or self.has_separator or self._is_of_other_project(first):
            return None
        missing = self._required() - (len(self.words) - 1)
        if parameter.nargs == -1:
            missing = len(self.rest) - len(self.words) + 1
        if not self.rest or (missing <= 0 and not names):
            return None
        default = self._default(names)
        if default is None:
            return self._refuse_without_default(names) if missing > 0 else None
        if missing > 0 or self._fits(first, default):
            return default
        if self.rest[0].nargs != -1:
            return None
        question = did_you_mean(first, names)
        if question:
            meant = question.split("`")[1]
            self._refuse(
                f"`{first}` is no environment. {question}",
                [meant, *self.words[1:]],
                [default, *self.words],
            )
        return default

    def _required(self) -> int:
        """How many words must follow NAME."""
        if self.path == "add":
            return int(not (self.values.get("files") or self.values.get("editables")))
        return sum(parameter.required for parameter in self.rest)

    def _default(self, names: Sequence[str]) -> str | None:
        """The environment that is meant where none is named. Raises click.UsageError if the
        project's settings name one that does not exist."""
        from provision.workflow.context import existing_environments  # takes long to import

        file, settings = settings_of(self.folders.envs) or (None, {})
        default = settings.get("default")
        if default and default not in names:
            raise click.UsageError(
                f'{file} says `default = "{default}"`, and there is no such environment. '
                f"{existing_environments(self.folders.envs, default)}",
                self.context,
            )
        if default:
            return default
        return names[0] if len(names) == 1 else None

    def _is_installed(self, names: Sequence[str]) -> bool:
        return self._default(names) in list_prefixes(self.folders)

    def _refuse_without_default(self, names: Sequence[str]) -> NoReturn:
        envs = self.folders.envs
        if names:
            problem = f"NAME is missing, and {envs} has several environments: {', '.join(names)}. "
            problem += f'Name one; or write `default = "{names[0]}"` into '
            problem += f"{project_root(envs) / FILE}, and NAME may be left out."
        else:
            problem = (
                f"NAME is missing, and {envs} has no environment. `provision init` proposes one."
            )
            roots = [
                str(project_root(path)) for path in recorded_projects(self.folders.data).values()
            ]
            if roots:
                problem += f" Projects of yours: {', '.join(sorted(roots))}."
        raise click.UsageError(problem, self.context)

    def _refuse_either(self, first: str, names: Sequence[str]) -> None:
        """Refuse an environment's name that can also be what the verb does something with."""
        default = self._default(names) if self.rest and len(self.words) == 1 else None
        if self.has_separator or default in (None, first):
            return
        if self._required() > 0:
            what = (self.rest[0].metavar or self.rest[0].name or "").strip("[].").upper()
            self._refuse(
                f"`{first}` is an environment, and nothing follows it.",
                [first, what],
                [default, first],
            )
        elif self._fits(first, default):
            self._refuse(
                f"`{first}` is an environment, and {default} has it too.",
                [first, "--"],
                ["--", first],
            )

    def _refuse(self, problem: str, *forms: Sequence[str | None]) -> NoReturn:
        lines = [shlex.join(["provision", *self.path.split(), *map(str, form)]) for form in forms]
        lines = [f"  {line}" for line in lines]
        raise click.UsageError(
            "\n".join([f"{problem.strip()} Write one of:", *lines]), self.context
        )

    def _fits(self, word: str, default: str | None) -> bool:
        """Whether a word certainly is what follows NAME, in the default environment."""
        kind = self.rest[0].name
        if kind in ("package", "packages"):
            return word in locked_packages(self.folders.envs / str(default))
        if kind == "folder":
            return Path(word).is_dir()
        if kind == "command":
            programs = prefix_path(self.folders, str(default)) / "bin"
            return shutil.which(word, path=f"{programs}:{os.environ.get('PATH', '')}") is not None
        return False

    def _is_of_other_project(self, name: str) -> bool:
        """Outside of projects, an installed environment is found wherever it is of: the command then
        works in that project. Raises click.UsageError if there are several."""
        given = self.values.get("envs") or shared_value(self.context, "envs")
        if given or self.path in CHANGES or has_environments(self.folders.envs):
            return False
        projects = owners(self.folders, name)
        if len(projects) > 1:
            raise click.UsageError(
                f"Several projects have an environment `{name}`: {', '.join(map(str, projects))}. "
                "Go to one, or name its folder with --envs.",
                self.context,
            )
        for envs in projects:
            self.context.meta["provision.envs"] = envs
            del self.context.meta[FOLDERS]
            self.context.meta[NOTES].append(f"{name} of the project {project_root(envs)}")
        return bool(projects)
