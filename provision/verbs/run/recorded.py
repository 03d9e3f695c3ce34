"""What the next `provision run` of an environment needs, so that it becomes its command at once
(`cli/start.py`), and all files and folders on which that depends.

Only a run that had nothing to say is recorded, of an environment in its usual folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from provision.cli import records
from provision.core.paths import LOCK, SPEC, Folders
from provision.core.types import Prefix
from provision.environment import activation, marker
from provision.environment.state import RUNTIME


def record_run(
    folders: Folders, prefix: Prefix, command: Sequence[str], variables: dict[str, str]
) -> None:
    """Record a run. variables: the whole environment of its command."""
    bin_folder, _, path = variables["PATH"].partition(":")
    if path != records.START.get("PATH") or not prefix.path.is_relative_to(folders.project_data):
        return
    argv = activation.run_argv(prefix, command)[: -len(command)]
    changed = dict(variables.items() - records.START.items() - {("PATH", variables["PATH"])})
    result = (argv, bin_folder, changed, list(activation.DROPPED_VARIABLES))
    described = folders.envs / prefix.name
    files = (described / LOCK, described / SPEC, prefix.path / marker.MARKER, prefix.python)
    records.write_record(folders, prefix.name, files, _listed(prefix), result)


def _listed(prefix: Prefix) -> Iterator[Path]:
    """Folders whose entries count, and the runtime package here and in the prefix."""
    yield from (prefix.path / "conda-meta", prefix.path / "etc" / "conda" / "activate.d")
    yield from prefix.path.glob("lib/python3*/site-packages")
    yield from prefix.path.glob("lib/python3*/site-packages/provision_runtime-*/RECORD")
    for parent, _, names in os.walk(RUNTIME[0]):
        if not parent.endswith("__pycache__"):
            yield from (Path(parent, name) for name in (".", *names))
