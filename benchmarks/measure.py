"""What the benchmarks share: a folder of their own, the command, and a user's environment within that folder."""

from __future__ import annotations

import os
import sys
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
