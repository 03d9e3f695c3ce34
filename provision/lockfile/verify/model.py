"""What `provision lock verify` reports, and the names of Python packages in conda."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from packaging.utils import canonicalize_name

from provision.lockfile.conda_lock_v1 import LockEntry

FindingKind = Literal[
    "dependency",
    "constraint",
    "hash",
    "file",
    "channel",
    "twice",
    "both",
    "inputs",
    "gone",
    "changed",
    "silent",
]

# conda's names for a Python package, besides its own: opencv -> py-opencv, msgpack ->
# msgpack-python.
CONDA_NAME_FORMS = ("{}", "py{}", "py-{}", "python-{}", "{}-python", "{}-py")
OTHER_CONDA_NAMES = {
    "torch": "pytorch",
    "opencv-python": "opencv",
    "tensorflow-cpu": "tensorflow",
}


@dataclass(frozen=True, kw_only=True)
class LockFinding:
    """One thing that is wrong with a lock."""

    platform: str
    package: str
    kind: FindingKind
    message: str


def finding(entry: LockEntry, kind: FindingKind, message: str) -> LockFinding:
    """What is wrong with one entry."""
    return LockFinding(platform=entry.platform, package=entry.name, kind=kind, message=message)


def conda_names(wheel: str) -> set[str]:
    """What conda may call a Python package."""
    name = canonicalize_name(wheel)
    names = {form.format(name) for form in CONDA_NAME_FORMS}
    names.add(OTHER_CONDA_NAMES.get(name, name))
    return names


def is_python_package(entry: LockEntry) -> bool:
    """Whether a conda package is one for Python: a C library may have the name of a wheel (zstd,
    graphviz).
    """
    return any(name in ("python", "python_abi") for name, _ in entry.depends)
