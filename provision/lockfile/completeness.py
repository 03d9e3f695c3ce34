"""Whether a lock holds everything that its own entries and the request require.

A lock from which packages were removed by hand still has well-formed entries; an environment made
from it would be called complete and would not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.package_names import requirement_name
from provision.core.types import Lock, Manager, Pin
from provision.lockfile.verify.requirements import LockedPackages

SHOWN_PROBLEMS = 5


def require_complete(lock: Lock, pins: Sequence[Pin]) -> None:
    """Raise IntegrityError if the lock lacks a pinned package, or a dependency of an entry."""
    # conda's may stand for a wheel if it is for Python: its pip brings setuptools.
    for_python = [package for package in lock.packages if package.is_for_python]
    wheels = LockedPackages([*for_python, *lock.by("pip")])
    conda_packages = {package.name for package in lock.by("conda")}
    problems = []

    def has(manager: Manager, name: str) -> bool:
        """Whether a package is there. What the machine has, like __glibc, is no package."""
        if name.startswith("__"):
            return True
        if manager == "conda":
            return name.lower() in conda_packages
        return wheels.version(name) is not None

    for pin in pins:
        if "://" in pin.requirement.partition(" @ ")[0]:  # an address, without a name
            continue
        name = requirement_name(pin.requirement)
        if name and not has(pin.manager, name):
            problems.append(f"it has no {name}, which the request needs")
    problems += [
        f"{package.name} needs {name}, which is not in it"
        for package in lock.packages
        for name in package.needs
        if not has(package.manager, name)
    ]
    if problems:
        listed = "; ".join(problems[:SHOWN_PROBLEMS])
        more = len(problems) - SHOWN_PROBLEMS
        raise IntegrityError(
            f"{lock.path} is not complete: {listed}{f'; and {more} more' if more > 0 else ''}.",
            advice="Restore the file, or lock again: provision lock NAME --relock",
        )


def require_no_editables(lock: Lock, product: str) -> None:
    """Raise InvalidSpec for a product that cannot hold editables: their files are elsewhere."""
    names = [package.name for package in lock.packages if package.is_editable]
    if names:
        raise InvalidSpec(
            f"{', '.join(names)} is an editable, whose files stay in a folder of this machine: "
            f"{product} cannot hold it.",
            advice="Add it as a wheel instead: provision add NAME ./FOLDER",
        )
