"""Whether an installed environment is still what its lock says, answered in milliseconds.

`env list` asks this of many environments. `drift` compares every package with the lock, and on
request every file, and takes longer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import provision_runtime
from provision.core.dataclass import frozen
from provision.core.paths import LOCK
from provision.core.types import Prefix
from provision_runtime.facts import freshness

# current: as locked. differs: packages were added, removed or changed by hand. stale: the lock or
# the request in the envs folder is newer than the prefix, or provision is. damaged: no interpreter.
# no lock: the envs folder has no lock for it. not installed: there is a lock or a request only.
State = Literal["current", "differs", "stale", "damaged", "no lock", "not installed"]
RUNTIME = (provision_runtime.__path__[0], provision_runtime.__version__)


@frozen
class EnvironmentState:
    """A state, and its reason in words; empty for `current`."""

    state: State
    reason: str = ""


def quick_state(
    prefix: Prefix | None, folder: Path, marker: Mapping[str, Any] | None = None
) -> EnvironmentState:
    """The state of an environment, by the digests of its lock and spec.yml, the names of what is
    installed, and the sizes of the runtime package's files.

    folder: the environment's, under envs. marker: the content of the prefix's, if it was read already.
    """
    if prefix is None:
        if (folder / LOCK).exists():
            return EnvironmentState(state="not installed", reason="locked, not installed here")
        return EnvironmentState(state="not installed", reason="neither locked nor installed here")
    if not os.access(prefix.python, os.F_OK):
        return EnvironmentState(state="damaged", reason=f"{prefix.path} has no bin/python")
    path = str(prefix.path)
    marker = marker or freshness.read_marker(path)
    state, reason = freshness.judge(path, str(folder), marker)
    if state == "current" and not freshness.has_runtime(path, *RUNTIME) and not marker.get("pack"):
        state, reason = (
            "stale",
            "installed by another version of provision, whose runtime package it has",
        )
    return EnvironmentState(state=cast("State", state), reason=reason)
