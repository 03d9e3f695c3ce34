"""Whether an installed environment is still what its lock says, answered in milliseconds.

`env list` asks this of many environments. `drift` compares every package with the lock, and on
request every file, and takes longer.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from provision.core.types import Prefix
from provision.environment import marker, runtime_package

# current: as locked. differs: packages were added, removed or changed by hand. stale: the lock or
# the request in the envs folder is newer than the prefix. damaged: no interpreter.
# no lock: the envs folder has no lock for it. not installed: there is a lock or a request only.
State = Literal["current", "differs", "stale", "damaged", "no lock", "not installed"]
SHOWN_CHANGES = 3


@dataclass(frozen=True, kw_only=True)
class EnvironmentState:
    """A state, and its reason in words; empty for `current`."""

    state: State
    reason: str = ""


def quick_state(prefix: Prefix | None, lock_path: Path) -> EnvironmentState:
    """The state of an environment, by its lock's digest and the names of what is installed.

    A file that was changed in place is not noticed: `provision env diff NAME --files` reads all.
    """
    if prefix is None:
        if lock_path.exists():
            return EnvironmentState(state="not installed", reason="locked, not installed here")
        return EnvironmentState(state="not installed", reason="neither locked nor installed here")
    if not prefix.python.exists():
        return EnvironmentState(state="damaged", reason=f"{prefix.path} has no bin/python")
    changes = changed_packages(prefix)
    if changes:
        names = ", ".join(changes[:SHOWN_CHANGES])
        if len(changes) > SHOWN_CHANGES:
            names += f" and {len(changes) - SHOWN_CHANGES} more"
        return EnvironmentState(state="differs", reason=f"changed since it was installed: {names}")
    try:
        sha256 = hashlib.sha256(lock_path.read_bytes()).hexdigest()
    except OSError:
        return EnvironmentState(state="no lock", reason=f"there is no {lock_path}")
    if sha256 != prefix.lock_sha256:
        return EnvironmentState(
            state="stale", reason="installed from another lock than the present one"
        )
    return EnvironmentState(state="current")


def changed_packages(prefix: Prefix) -> list[str]:
    """The packages that were added to a prefix, or removed from it, since it was installed.

    By the names of their records: `name-version.dist-info` of wheels, `name-version-build.json` of
    conda packages. An updated package is among them, because its version changed.
    """
    recorded = marker.recorded_contents(prefix.path)
    if not recorded:
        return []  # it came in a pack
    present = marker.package_records(prefix.path)
    changed = set()
    for record in recorded ^ present:
        if record.endswith(".dist-info"):
            changed.add(record.removesuffix(".dist-info").rpartition("-")[0])
        else:
            changed.add(record.removesuffix(".json").rsplit("-", 2)[0])
    return sorted(changed - {runtime_package.NAME})
