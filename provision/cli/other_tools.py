"""Words that users of conda, pixi, uv and pip type, and our verbs for them.

They are no aliases: one thing has one name here, and the error says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import click

VERBS_OF_WORDS = {
    "create": "build",
    "delete": "env remove",
    "diff": "env diff",
    "envs": "env list",
    "exec": "run",
    "export": "lock export",
    "info": "status",
    "install": "add",
    "list": "env list",
    "ls": "env list",
    "new": "build",
    "python": "run",
    "rm": "env remove",
    "search": "matrix",
    "show": "env show",
    "sync": "build",
    "test": "smoke",
    "tree": "env tree",
    "uninstall": "remove",
    "upgrade": "update",
    "version": "--version",
}
VERBS_OF_ENV_WORDS = {
    "activate": "shell",
    "add": "add",
    "build": "build",
    "delete": "env remove",
    "export": "lock export",
    "info": "env show",
    "install": "env create",
    "ls": "env list",
    "new": "env create",
    "rm": "env remove",
    "run": "run",
    "update": "update",
}


class GroupWithOtherWords(click.Group):
    """A group whose error for another tool's word names our verb."""

    words: ClassVar[Mapping[str, str]] = VERBS_OF_WORDS

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        verb = self.words.get(args[0])
        if verb is not None and not ctx.resilient_parsing:
            message = f"No such command '{args[0]}'. Did you mean `provision {verb}`?"
            raise click.UsageError(message, ctx)
        return super().resolve_command(ctx, args)


class EnvGroup(GroupWithOtherWords):
    words = VERBS_OF_ENV_WORDS
