"""Which variables code sees that uv runs to build packages: git repositories, projects, sdists.

It is code of strangers that runs as this user. uv gives it all variables that uv itself has, so uv
gets these few, and logins of indexes in its configuration file. git and keyring, which need more to
log in, are started through a wrapper that gives them the user's own variables. This is no sandbox:
such code can read the user's files, and those of /proc.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from provision.core.errors import InvalidSpec

# Names of more variables that such code may see.
BUILD_ENV = "PROVISION_BUILD_ENV"
# Programs with which uv fetches and logs in.
_PROGRAMS = ("git", "keyring")
# uv clears these, because they point git at another repository.
_OF_A_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY")
# The variables come from our process, so that no file holds them. Build code that starts git gets
# no more than it has.
_WRAPPER = """\
import os, sys
names, ours, program, *arguments = map(os.fsencode, sys.argv[1:])
pairs = []
try:
    with open(f"/proc/{os.getppid()}/comm") as file:
        is_uv = file.read() == "uv\\n"
    if is_uv:
        with open(b"/proc/%s/environ" % ours, "rb") as file:
            pairs = file.read().split(b"\\0")
except OSError:
    pass  # then it has what uv has
for pair in pairs:
    name, _, value = pair.partition(b"=")
    if name in names.split():
        os.environb.setdefault(name, value)
os.execv(program, [program, *arguments])
"""


def is_for_builds(name: str) -> bool:
    """Whether build code always sees a variable."""
    names, beginnings = _names()
    return name in names or name.startswith(beginnings)


@cache
def _names() -> tuple[list[str], tuple[str, ...]]:
    """Whole names, and how others begin."""
    text = Path(__file__).with_name("build_variables.txt").read_text(encoding="utf-8")
    words = re.sub("#.*", "", text).split()
    return words, tuple(word[:-1] for word in words if word.endswith("*"))


def chosen_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that the user lets build code see. Raises InvalidSpec for one that is not set,
    or that would configure uv."""
    variables = {}
    for name in environ.get(BUILD_ENV, "").split():
        if name.startswith("UV_"):
            raise InvalidSpec(
                f"{BUILD_ENV}: {name}: uv's own variables decide what is installed.",
                advice="docs/mirrors.md says which of them are honored.",
            )
        if name not in environ:
            raise InvalidSpec(
                f"{BUILD_ENV}: {name}: this variable is not set.",
                advice="Name a variable of your shell, and export it.",
            )
        variables[name] = environ[name]
    return variables


def write_wrappers(folder: Path, environ: Mapping[str, str], visible: Mapping[str, str]) -> None:
    """Write programs into a folder that give git and keyring what uv does not see. environ: what
    they may have. visible: what uv has."""
    names = [name for name in environ if name not in visible and name not in _OF_A_REPOSITORY]
    for program in _PROGRAMS:
        path = shutil.which(program, path=environ.get("PATH"))
        if path is not None:
            command = [sys.executable, "-I", "-S", "-c", _WRAPPER]
            command += [" ".join(names), str(os.getpid()), path]
            wrapper = folder / program
            wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
            wrapper.chmod(0o700)
