"""What the benchmarks share: a folder of their own, the command, and a user's environment within that folder."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

PROVISION = str(Path(sys.executable).parent / "provision")


def box() -> Path:
    """Where benchmarks keep what they make (PROVISION_BENCH, else ./.bench): a project of its own,
    also within another one."""
    place = Path(os.environ.get("PROVISION_BENCH", ".bench")).absolute()
    (place / "envs").mkdir(parents=True, exist_ok=True)
    return place


def environment() -> dict[str, str]:
    """A user whose folders are all in the box. uv's cache is the user's own, unless UV_CACHE_DIR says otherwise.

    Python may write bytecode: pip compiles what it installs, and compiling it at every start would be measured instead.
    """
    place = box()
    ours = {
        "PROVISION_DATA": place / "data",
        "PROVISION_CACHE": place / "cache",
        "JUPYTER_DATA_DIR": place / "jupyter",
    }
    variables = {**os.environ, **{key: str(value) for key, value in ours.items()}}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    return variables


def forget() -> None:
    """Remove what provision remembers of locks: then a lock costs what one that differs costs."""
    shutil.rmtree(box() / "cache" / "remembered", ignore_errors=True)


def seconds(
    command: list[str], env: Mapping[str, str] | None = None, *, check: bool = True
) -> tuple[float, float]:
    """Wall and CPU seconds of a command with all its children. check: it must succeed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=check, capture_output=True, env=env, cwd=box())
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return wall, user + system
