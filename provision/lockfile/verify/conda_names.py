"""By which names conda may have what a wheel asks for."""

from __future__ import annotations

from packaging.utils import canonicalize_name

from provision.lockfile.conda_lock_v1_contents import LockEntry

# The other names under which conda has a Python package, beside its own: opencv -> py-opencv, msgpack -> msgpack-python.
FORMS = ("{}", "py{}", "py-{}", "python-{}", "{}-python", "{}-py")
OTHERS = {"torch": "pytorch", "opencv-python": "opencv", "tensorflow-cpu": "tensorflow"}


def conda_names(wheel: str) -> set[str]:
    """What conda may call a Python package."""
    name = canonicalize_name(wheel)
    return {form.format(name) for form in FORMS} | {OTHERS.get(name, name)}


def is_python_package(entry: LockEntry) -> bool:
    """Whether conda's package is one for Python: a C library may have a wheel's name (zstd, graphviz)."""
    return any(name in ("python", "python_abi") for name, _ in entry.depends)
