"""`provision run` and `provision shell`: a command or a shell in an environment's prefix.

Both become the command, so this imports little.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from provision.core.errors import ToolMissing
from provision.core.types import Prefix
from provision.environment import activation


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What the process becomes: its argv and its whole environment."""

    argv: list[str]
    variables: dict[str, str]


def run_launch(prefix: Prefix, command: Sequence[str]) -> Launch:
    """A command in a prefix. Raises ToolMissing if there is no such program."""
    variables = activation.run_variables(prefix, os.environ)
    if shutil.which(command[0], path=variables["PATH"]) is None:
        raise ToolMissing(
            f"There is no `{command[0]}` in {prefix.path / 'bin'}, nor elsewhere on PATH.",
            advice=f"If a package has it, `provision add {prefix.name} PACKAGE` adds that package.",
        )
    return Launch(argv=activation.run_argv(prefix, command), variables=variables)


def shell_launch(prefix: Prefix, *, interactive: bool) -> Launch:
    """The user's shell in a prefix. interactive: with the user's own start files and a prompt."""
    shell = os.environ.get("SHELL") or "bash"
    if not interactive:
        return run_launch(prefix, [shell])
    variables = activation.shell_variables(prefix, shell, os.environ)
    return Launch(argv=activation.shell_argv(prefix, shell), variables=variables)
