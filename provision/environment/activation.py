"""Entering a prefix: its activation scripts, and the variables and commands that enter it without
them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from provision.core.atomic import atomic_write
from provision.core.types import Prefix

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Either of the last two can put other builds of torch's libraries first (pytorch/pytorch#80637).
DROPPED_VARIABLES = ("PYTHONHOME", "PYTHONPATH", "LD_LIBRARY_PATH")
# The variable that tells the start files of `provision shell` which prefix to enter.
SHELL_PREFIX = "PROVISION_SHELL_PREFIX"
USER_ZDOTDIR = "PROVISION_ZDOTDIR"
_SCRIPTS = {"bin/activate": "activate.sh", "bin/activate.fish": "activate.fish"}
_FOLDER = Path(__file__).parent / "shell"
_SOURCE_AND_EXEC = 'for script in "$0"/*.sh; do . "$script"; done; exec "$@"'


def write_scripts(tree: Path) -> None:
    """Write the activation scripts. They find their prefix by their own path, so they are the same
    in every prefix. A package's own file of that name stays (conda's package has `bin/activate`).
    """
    for relative, source in _SCRIPTS.items():
        path = tree / relative
        if not path.exists() or "Written by provision" in path.read_text(errors="replace"):
            atomic_write(path, (_FOLDER / source).read_text(encoding="utf-8"))


def activation_variables(prefix: Prefix) -> dict[str, str]:
    """The variables that a shell's activation would set, for programs started without a shell.

    PYTHONNOUSERSITE keeps packages of ~/.local out (conda/conda#7173). PYTHONPATH and
    LD_LIBRARY_PATH are emptied, see DROPPED_VARIABLES.
    """
    return {
        **_prefix_variables(prefix),
        "PATH": f"{prefix.path / 'bin'}:{SYSTEM_PATH}",
        "PYTHONPATH": "",
        "LD_LIBRARY_PATH": "",
    }


def _prefix_variables(prefix: Prefix) -> dict[str, str]:
    return {
        "CONDA_PREFIX": str(prefix.path),
        "CONDA_DEFAULT_ENV": prefix.name,
        "PYTHONNOUSERSITE": "1",
        "PROVISION_LOCK_HASH": prefix.lock_sha256,
    }


def run_variables(prefix: Prefix, environ: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a command in the prefix: the user's own, as activation changes it.

    The user's PATH stays, after the prefix.
    """
    variables = {name: environ[name] for name in environ if name not in DROPPED_VARIABLES}
    path = environ.get("PATH") or SYSTEM_PATH
    return {**variables, **_prefix_variables(prefix), "PATH": f"{prefix.path / 'bin'}:{path}"}


def run_argv(prefix: Prefix, command: Sequence[str]) -> list[str]:
    """The argv of a command in the prefix.

    The command itself, unless conda packages have scripts that only a shell can run first.
    """
    scripts = prefix.path / "etc" / "conda" / "activate.d"
    if not any(scripts.glob("*.sh")) or shutil.which("bash") is None:
        return list(command)
    return ["bash", "-c", _SOURCE_AND_EXEC, str(scripts), *command]


def shell_argv(prefix: Prefix, shell: str) -> list[str]:
    """The argv of an interactive shell in the prefix; shell: its path. Other shells than bash, zsh
    and fish become bash."""
    kind = Path(shell).name
    if kind == "zsh":
        return [shell, "-i"]
    if kind == "fish":
        return [
            shell,
            "-i",
            "-C",
            f"source ${SHELL_PREFIX}/bin/activate.fish; set -e {SHELL_PREFIX}",
        ]
    if kind != "bash":
        shell = "bash"
    return [shell, "--rcfile", str(_FOLDER / "bashrc"), "-i"]


def shell_variables(prefix: Prefix, shell: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment that an interactive shell of `shell_argv` starts with. Its start files do the
    activation, after the user's own."""
    variables = {
        **environ,
        SHELL_PREFIX: str(prefix.path),
        "PROVISION_LOCK_HASH": prefix.lock_sha256,
    }
    if Path(shell).name == "zsh":
        variables[USER_ZDOTDIR] = environ.get("ZDOTDIR", "")
        variables["ZDOTDIR"] = str(_FOLDER / "zsh")
    return variables
