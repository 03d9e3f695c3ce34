"""`provision run` and `provision shell`: a command or a shell in an environment's prefix.

Both become the command, so this imports little.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Sequence
from importlib.resources import files

from provision.core.dataclass import frozen
from provision.core.errors import ToolMissing
from provision.core.types import Prefix
from provision.environment import activation
from provision.launch.jobs import OnHang
from provision_runtime.hang import folder, stacks
from provision_runtime.hang.variables import rank_variables

# What starts ranks through torch.distributed.run.
LAUNCHERS = {
    "torchrun",
    "accelerate launch",
    "fabric run",
    "lightning run",
    "-m torch.distributed.run",
    "-m torch.distributed.launch",
}
PYTHON = re.compile(r"python(3(\.\d+)?)?")


@frozen
class Launch:
    """What the process becomes: its argv and its whole environment."""

    argv: list[str]
    variables: dict[str, str]


def run_launch(prefix: Prefix, command: Sequence[str], *, record: bool = False) -> Launch:
    """A command in a prefix. Raises ToolMissing if there is no such program.

    A launcher of ranks gets the variables by which `provision why` can ask them. record: also that of
    their record of collectives.
    """
    variables = activation.run_variables(prefix, os.environ)
    if record or launcher_words(command):
        # Without a private folder for the files of ranks, they cannot be asked.
        with contextlib.suppress(OSError):
            variables = {**rank_variables(folder.ensure_folder(), record=record), **variables}
    if shutil.which(command[0], path=variables["PATH"]) is None:
        raise ToolMissing(
            f"There is no `{command[0]}` in {prefix.path / 'bin'}, nor elsewhere on PATH.",
            advice=f"If a package has it, `provision add {prefix.name} PACKAGE` adds that package.",
        )
    return Launch(argv=activation.run_argv(prefix, command), variables=variables)


def watched_launch(
    prefix: Prefix,
    command: Sequence[str],
    variables: dict[str, str],
    hang_after_s: int,
    on_hang: OnHang,
) -> Launch | None:
    """The same for a command that starts ranks, in a process that reports how they fail and hang;
    None for any other command."""
    tokens = launcher_words(command)
    if tokens is None:
        return None
    if tokens[0] != "-m":
        program = prefix.path / "bin" / tokens[0]
        if not program.is_file():  # another one on PATH
            return None
        tokens = [str(program), *tokens[1:]]
    options = [f"--hang-after={hang_after_s}", f"--on-hang={on_hang}"]
    runtime = [str(prefix.python), "-B", str(files("provision_runtime")), "launcher", *options]
    argv = activation.run_argv(prefix, [*runtime, "--", *tokens])
    variables = {stacks.PY_SPY: stacks.py_spy(), **variables}
    return Launch(argv=argv, variables=variables)


def launcher_words(command: Sequence[str]) -> list[str] | None:
    """What a command that starts ranks with torch's launcher runs: a program of the environment, or
    -m MODULE; None for another command."""
    program, *arguments = command
    if PYTHON.fullmatch(program):
        return arguments if " ".join(arguments[:2]) in LAUNCHERS else None
    is_launcher = program in LAUNCHERS or " ".join(command[:2]) in LAUNCHERS
    return list(command) if is_launcher else None


def shell_launch(prefix: Prefix, *, interactive: bool) -> Launch:
    """The user's shell in a prefix. interactive: with the user's own start files and a prompt."""
    shell = os.environ.get("SHELL") or "bash"
    if not interactive:
        return run_launch(prefix, [shell])
    variables = activation.shell_variables(prefix, shell, os.environ)
    return Launch(argv=activation.shell_argv(prefix, shell), variables=variables)
