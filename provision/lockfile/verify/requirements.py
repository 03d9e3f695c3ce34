"""Checks that a lock has what its packages require.

conda packages are checked by their lock entries. A wheel's entry has
no versions, so each wheel's own metadata is compared with the lock, with its markers and extras
evaluated for the lock's platform and Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from provision.adapters import conda
from provision.adapters.uv import WheelMetadata
from provision.core.paths import VIRTUAL_PACKAGES
from provision.core.statements import marker_environment
from provision.core.types import LockedPackage
from provision.lockfile.conda_lock_v1 import PYTHON_FROM, LockFile
from provision.lockfile.input_files import LockInputs, VirtualPackages
from provision.lockfile.joint_solve import WHEEL_NAMES
from provision.lockfile.verify.entries import LockFinding, conda_names, finding

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

MAX_REASON = 200  # characters
MarkerEnvironment = Mapping[str, str]


def conda_findings(
    entries: Sequence[LockedPackage], inputs: LockInputs | None, lock: LockFile
) -> Iterator[LockFinding]:
    """Unmet requirements of one platform's conda packages. inputs: they say what the machine has."""
    packages = {entry.name: entry for entry in entries if entry.manager == "conda"}
    machine: VirtualPackages | None = None
    for platform, virtual_packages in inputs.machines.items() if inputs and entries else ():
        if platform == entries[0].platform:
            machine = virtual_packages
    for name, text in machine or ():
        version, _, build = text.partition(" ")  # some have a build: `1 x86_64`
        packages[name] = LockedPackage(
            manager="conda", name=name, version=version, build=build or "0", url="", sha256=""
        )
    for entry in entries:
        if entry.manager != "conda":
            continue
        # This machine's Python is for this machine's glibc; the lock's metadata says so.
        is_host_python = lock.custom_metadata.get(PYTHON_FROM) == "host" and entry.url.startswith(
            "file:"
        )
        for name, requirement in zip(entry.needs, entry.depends):
            is_virtual = name.startswith("__")
            if is_virtual and (machine is None or (is_host_python and name == "__glibc")):
                continue
            if problem := conda.unsatisfied(requirement, packages):
                where = f" in {VIRTUAL_PACKAGES}" if is_virtual else ""
                message = f"needs {requirement}, and {name} {problem}{where}"
                yield finding(entry, "dependency", message)


class Unchecked(Exception):
    """What a wheel requires cannot be evaluated; the text says why."""


# A locked wheel and its requirements, all of which could be parsed and evaluated.
_Wheel = tuple[LockedPackage, tuple["Requirement", ...]]


def wheel_findings(
    entries: Sequence[LockedPackage],
    metadata: Mapping[str, WheelMetadata | str],
    input_requirements: Sequence[str] = (),
) -> tuple[list[LockFinding], dict[str, str]]:
    """Unmet requirements of one platform's wheels; and the packages whose own metadata could not be
    compared, each with the reason. Of these, the names in the lock's entry count.

    metadata: each wheel's own by URL, or why it is not available. input_requirements: those of
    environment.yml, whose extras count too.
    """
    environment: MarkerEnvironment = {}
    why = "the lock has no Python"
    for python in entries:
        if (python.manager, python.name) == ("conda", "python"):
            why = f"provision does not know the values of markers for {python.platform}"
            with suppress(KeyError):
                environment = marker_environment(python.version, python.platform)
            break
    if not environment:
        metadata = {entry.url: why for entry in entries}
    locked = LockedPackages(entries)
    wheels: dict[str, _Wheel] = {}
    unchecked: dict[str, str] = {}
    findings: list[LockFinding] = []
    for entry in entries:
        if entry.manager != "pip":
            continue
        try:
            requires_python, requires = _parse_wheel(entry, metadata.get(entry.url), environment)
        except Unchecked as reason:
            unchecked[entry.name] = str(reason)
            for name in entry.needs:
                if locked.version(name) is None:
                    message = f"needs {name}, which is not in the lock"
                    findings.append(finding(entry, "dependency", message))
            continue
        wheels[canonicalize_name(entry.name)] = entry, requires
        version = environment["python_full_version"]
        if not requires_python.contains(version, prereleases=True):
            message = f"needs Python {requires_python}, and python is {version}"
            findings.append(finding(entry, "dependency", message))
    findings += _unmet(wheels, input_requirements, environment, locked)
    return findings, unchecked


def _parse_wheel(
    entry: LockedPackage, metadata: WheelMetadata | str | None, environment: MarkerEnvironment
) -> tuple[SpecifierSet, tuple[Requirement, ...]]:
    """The Pythons and the packages that a wheel requires."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    if not isinstance(metadata, WheelMetadata):
        raise Unchecked(metadata or "its metadata was not read")
    try:
        same_name = canonicalize_name(metadata.name) == canonicalize_name(entry.name)
        is_same = same_name and Version(metadata.version) == Version(entry.version)
        requires = tuple(Requirement(text) for text in metadata.requires)
        python = SpecifierSet(metadata.requires_python)
        # Both raise for what they cannot evaluate.
        python.contains(environment["python_full_version"])
        for requirement in requires:
            _applies(requirement, "", environment)
    except ValueError as error:  # packaging's, for invalid requirements, specifiers and versions
        text = " ".join(str(error).split())[:MAX_REASON]
        raise Unchecked(f"its metadata cannot be parsed ({text})") from error
    if not is_same:
        raise Unchecked(f"its metadata is of {metadata.name} {metadata.version}"[:MAX_REASON])
    return python, requires


def _applies(requirement: Requirement, extra: str, environment: MarkerEnvironment) -> bool:
    """Whether a requirement applies with an extra, or (an empty text) without any."""
    if requirement.marker is None:
        return not extra
    return requirement.marker.evaluate({**environment, "extra": extra})


def _unmet(
    wheels: Mapping[str, _Wheel],
    input_requirements: Sequence[str],
    environment: MarkerEnvironment,
    locked: LockedPackages,
) -> Iterator[LockFinding]:
    """What the lock does not have of the wheels' requirements, with the extras that the inputs or
    other wheels request."""
    from packaging.requirements import InvalidRequirement, Requirement

    pending = [(name, "") for name in wheels]
    for text in input_requirements:
        with suppress(InvalidRequirement):  # an installer option requests no extras
            pending += _extras(Requirement(text))
    checked: set[tuple[str, str]] = set()
    while pending:
        name, extra = pending.pop()
        if (name, extra) in checked or name not in wheels:
            continue
        checked.add((name, extra))
        entry, requires = wheels[name]
        for requirement in requires:
            is_of_extra = not _applies(requirement, "", environment)
            if is_of_extra != bool(extra) or not _applies(requirement, extra, environment):
                continue
            pending += _extras(requirement)
            if problem := _problem(requirement, locked):
                needs = f"needs {requirement.name}{requirement.specifier}"
                if extra:
                    needs += f" (for its extra `{extra}`)"
                yield finding(entry, "dependency", f"{needs}, {problem}")


def _extras(requirement: Requirement) -> list[tuple[str, str]]:
    name = canonicalize_name(requirement.name)
    return [(name, canonicalize_name(extra)) for extra in sorted(requirement.extras)]


def _problem(requirement: Requirement, locked: LockedPackages) -> str:
    """Why the lock does not meet a requirement; empty if it does, or cannot be compared."""
    version = locked.version(requirement.name)
    if version is None:
        return "which is not in the lock"
    is_comparable = version != "" and not requirement.url
    if is_comparable and not requirement.specifier.contains(version, prereleases=True):
        return f"and {requirement.name} is {version}"
    return ""


class LockedPackages:
    """The Python packages of a lock, by the names of wheels."""

    def __init__(self, packages: Sequence[LockedPackage]) -> None:
        self._wheels: dict[str, str] = {}
        self._conda: dict[str, str] = {}
        for package in packages:
            if package.manager == "pip":
                self._wheels[canonicalize_name(package.name)] = package.version
            else:
                name = WHEEL_NAMES.get(package.name, package.name)
                self._conda[canonicalize_name(name)] = (
                    package.version if package.is_for_python else ""
                )

    def version(self, name: str) -> str | None:
        """The locked version; empty if it cannot be compared, None if the package is not locked."""
        from packaging.version import InvalidVersion, Version

        canonical = canonicalize_name(name)
        version = self._wheels.get(canonical) or self._conda.get(canonical, "")
        try:
            return str(Version(version))
        except InvalidVersion:
            # conda may have it under another name, and count its versions differently.
            is_locked = bool(version) or bool(conda_names(name) & self._conda.keys())
            return "" if is_locked else None
