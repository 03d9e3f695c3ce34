"""Checks a lock against its inputs, if they are in the same folder: their content hash, and the
machines that the solver assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from provision.core.errors import InvalidSpec
from provision.core.paths import ENVIRONMENT, VIRTUAL_PACKAGES
from provision.core.yaml_text import YamlError, parse_yaml, read_source
from provision.lockfile.conda_lock_v1 import AS_OF, INPUTS, SOURCES, LockFile
from provision.lockfile.input_files import read_inputs
from provision.lockfile.verify.entries import LockFinding


def assumed_machines(lock: LockFile) -> Mapping[str, Mapping[str, str]] | None:
    """Platform -> virtual package -> version: what the solver assumed, from the file next to the
    lock; None if it is missing or malformed."""
    document = _read_yaml(lock.path.parent / VIRTUAL_PACKAGES)
    subdirs = document.get("subdirs") if isinstance(document, dict) else None
    if not isinstance(subdirs, dict):
        return None
    machines: dict[str, dict[str, str]] = {}
    for platform, row in subdirs.items():
        packages = row.get("packages") if isinstance(row, dict) else None
        if not isinstance(packages, dict):
            return None
        machines[platform] = {str(name): str(version) for name, version in packages.items()}
    return machines


def pip_requirements(lock: LockFile) -> tuple[str, ...]:
    """The pip requirements of the environment.yml next to the lock; empty if it is missing or has
    another form.
    """
    path = lock.path.parent / ENVIRONMENT
    if ENVIRONMENT not in lock.sources or not path.is_file():
        return ()
    document = _read_yaml(path)
    dependencies = document.get("dependencies") if isinstance(document, dict) else None
    requirements: list[str] = []
    for row in dependencies if isinstance(dependencies, list) else ():
        section = row.get("pip") if isinstance(row, dict) else None
        if isinstance(section, list):
            requirements += [str(text) for text in section]
    return tuple(requirements)


def _read_yaml(path: Path) -> Any:
    """The document, or None for a file that cannot be read: other findings and notes name it."""
    try:
        return parse_yaml(read_source(path))
    except (YamlError, OSError):
        return None


def input_findings(lock: LockFile, *, is_current: bool | None) -> Iterator[LockFinding]:
    """is_current: as `is_of_inputs` returns it."""
    if is_current is False:
        message = f"was not locked from the current {ENVIRONMENT} and {VIRTUAL_PACKAGES}"
        for platform in sorted(lock.content_hash):
            yield LockFinding(
                platform=platform, package=lock.path.name, kind="inputs", message=message
            )


def is_of_inputs(lock: LockFile) -> bool | None:
    """Whether the lock was made from the inputs next to it; None if they cannot be compared.

    A lock of another tool has conda-lock's content hash alone, whose form changed with its
    versions.
    """
    folder = lock.path.parent
    if INPUTS not in lock.custom_metadata:
        return None
    try:
        inputs = read_inputs(
            (folder / ENVIRONMENT).read_text(encoding="utf-8"),
            (folder / VIRTUAL_PACKAGES).read_text(encoding="utf-8"),
            folder,
            as_of=lock.custom_metadata.get(AS_OF),
            sources=lock.custom_metadata.get(SOURCES, "").splitlines(),
        )
    except (InvalidSpec, OSError, UnicodeDecodeError):
        return None
    return bool(lock.custom_metadata[INPUTS] == inputs.sha256)
