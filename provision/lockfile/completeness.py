"""Whether a lock holds everything that its own entries and the request require.

A lock from which packages were removed by hand still has well-formed entries; an environment made
from it would be called complete and would not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packaging.utils import NormalizedName, canonicalize_name

from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.package_names import requirement_name
from provision.core.types import Lock, Pin
from provision.lockfile.verify.entries import conda_names

SHOWN_PROBLEMS = 5


def require_complete(lock: Lock, pins: Sequence[Pin]) -> None:
    """Raise IntegrityError if the lock lacks a pinned package, or a dependency of an entry."""
    problems = [*_missing_pins(lock, pins), *_missing_dependencies(lock)]
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


def _missing_pins(lock: Lock, pins: Sequence[Pin]) -> Iterator[str]:
    wheel_names, conda_package_names = _names(lock)
    for pin in pins:
        if "://" in pin.requirement.partition(" @ ")[0]:  # an address, without a name
            continue
        name = requirement_name(pin.requirement)
        if name.startswith("__"):
            continue
        if pin.manager == "conda":
            is_locked = name.lower() in conda_package_names
        else:
            is_locked = canonicalize_name(name) in wheel_names
        if name and not is_locked:
            yield f"it has no {name}, which the request needs"


def _missing_dependencies(lock: Lock) -> Iterator[str]:
    wheel_names, conda_package_names = _names(lock)
    for package in lock.packages:
        for dependency in package.depends:
            name = dependency.split()[0]
            if name.startswith("__"):  # the machine's glibc or driver
                continue
            if package.manager == "conda":
                is_locked = name in conda_package_names
            else:
                is_locked = canonicalize_name(name) in wheel_names or bool(
                    conda_names(name) & conda_package_names
                )
            if not is_locked:
                yield f"{package.name} needs {name}, which is not in it"


def _names(lock: Lock) -> tuple[set[NormalizedName], set[str]]:
    """The canonical names of the wheels, and the names of the conda packages."""
    wheel_names = {canonicalize_name(package.name) for package in lock.by("pip")}
    return wheel_names, {package.name for package in lock.by("conda")}
