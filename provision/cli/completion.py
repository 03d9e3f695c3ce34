"""What a shell completes: the names of environments and of their packages.

Reads file names, or searches the text of one file, and imports nothing else: a shell waits for it at
every press of Tab.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from pathlib import Path

    from provision.core.paths import Folders

LOCKED = re.compile(r"^- name: (\S+)$", re.MULTILINE)

Names = Callable[[click.Context], Iterable[str]]


class CompletedText(click.types.StringParamType):
    """A text of which a shell completes some values; others are as valid."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        prefix = incomplete.lower()
        return [
            CompletionItem(name)
            for name in dict.fromkeys(self._names(ctx))
            if name.lower().startswith(prefix)
        ]


def _folders(ctx: click.Context) -> Folders:
    from provision.core.paths import default_folders

    return default_folders(ctx.meta.get("provision.envs"))


def environment_names(ctx: click.Context) -> list[str]:
    """The environments of the envs folder, and those that are installed; where one may be left out,
    also the packages of the project's only one."""
    from provision.core import prefix_registry
    from provision.core.project import described_names

    folders = _folders(ctx)
    described = described_names(folders.envs)
    names = sorted({*prefix_registry.list_prefixes(folders), *described})
    takes_packages = any(p.name in ("package", "packages") for p in ctx.command.params)
    return names + (
        locked_packages(folders.envs / names[0]) if takes_packages and len(names) == 1 else []
    )


def package_names(ctx: click.Context) -> list[str]:
    """The locked packages of the environment that the command line names."""
    return locked_packages(_folders(ctx).envs / str(ctx.params.get("name")))


def locked_packages(folder: Path) -> list[str]:
    """The packages of the lock in an environment's folder."""
    from provision.core.paths import LOCK

    path = folder / LOCK
    if not path.is_file():
        return []
    return sorted(set(LOCKED.findall(path.read_text(encoding="utf-8", errors="replace"))))


# What is completed, by the name of the parameter.
BY_PARAMETER: dict[str, Names] = {
    "name": environment_names,
    "package": package_names,
    "packages": package_names,
    # Environments, where a file or another thing can be named too.
    "subject": environment_names,
    "target": environment_names,
    "targets": environment_names,
    "before": environment_names,
    "after": environment_names,
}


def add_completion(parameter: click.Parameter) -> None:
    """Let shells complete the values of a parameter, if they are plain texts that we know."""
    names = BY_PARAMETER.get(parameter.name or "")
    if names is not None and type(parameter.type) is click.types.StringParamType:
        parameter.type = CompletedText(names)
