"""Checks that a lock has what its packages require.

conda packages are checked by their lock entries. A wheel's entry has
no versions, so each wheel's own metadata is compared with the lock, with its markers and extras
evaluated for the lock's platform and Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from provision.adapters import conda
from provision.adapters.uv import WheelMetadata
from provision.core.dataclass import frozen
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


@frozen
class _Wheel:
    """A locked wheel and its requirements, all of which could be parsed and evaluated."""

    entry: LockedPackage
    python: SpecifierSet
    requires: tuple[Requirement, ...]

    def active(
        self, extras: Iterable[str], environment: MarkerEnvironment
    ) -> Iterator[tuple[Requirement, str]]:
        """The requirements that apply in the environment, each with the extra that adds it, or an
        empty text.
        """
        for requirement in self.requires:
            for extra in ("", *extras):
                marker = requirement.marker
                if marker is None or marker.evaluate({**environment, "extra": extra}):
                    yield requirement, extra
                    break


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
    try:
        environment = _marker_environment(entries)
    except Unchecked as reason:
        metadata = {entry.url: str(reason) for entry in entries}
    locked = LockedPackages(entries)
    wheels: dict[str, _Wheel] = {}
    unchecked: dict[str, str] = {}
    findings: list[LockFinding] = []
    for entry in entries:
        if entry.manager != "pip":
            continue
        try:
            wheel = _parse_wheel(entry, metadata.get(entry.url), environment)
            wheels[canonicalize_name(entry.name)] = wheel
        except Unchecked as reason:
            unchecked[entry.name] = str(reason)
            for name in entry.needs:
                if locked.version(name) is None:
                    message = f"needs {name}, which is not in the lock"
                    findings.append(finding(entry, "dependency", message))
    extras = _requested_extras(wheels, input_requirements, environment)
    for name, wheel in wheels.items():
        wheel_extras = sorted(extras.get(name, ()))
        for problem in _problems(wheel, wheel_extras, environment, locked):
            findings.append(finding(wheel.entry, "dependency", problem))
    return findings, unchecked


def _parse_wheel(
    entry: LockedPackage, metadata: WheelMetadata | str | None, environment: MarkerEnvironment
) -> _Wheel:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    if not isinstance(metadata, WheelMetadata):
        raise Unchecked(metadata or "its metadata was not read")
    try:
        same_name = canonicalize_name(metadata.name) == canonicalize_name(entry.name)
        is_same = same_name and Version(metadata.version) == Version(entry.version)
        requires = tuple(Requirement(text) for text in metadata.requires)
        wheel = _Wheel(
            entry=entry, python=SpecifierSet(metadata.requires_python), requires=requires
        )
        # Both raise for what they cannot evaluate.
        wheel.python.contains(environment["python_full_version"])
        list(wheel.active((), environment))
    except ValueError as error:  # packaging's, for invalid requirements, specifiers and versions
        text = " ".join(str(error).split())[:MAX_REASON]
        raise Unchecked(f"its metadata cannot be parsed ({text})") from error
    if not is_same:
        raise Unchecked(f"its metadata is of {metadata.name} {metadata.version}"[:MAX_REASON])
    return wheel


def _marker_environment(entries: Sequence[LockedPackage]) -> MarkerEnvironment:
    """The values that markers are evaluated for."""
    pythons = [entry for entry in entries if (entry.manager, entry.name) == ("conda", "python")]
    if not pythons:
        raise Unchecked("the lock has no Python")
    python = pythons[0]
    try:
        return marker_environment(python.version, python.platform)
    except KeyError as error:
        raise Unchecked(
            f"provision does not know the values of markers for {python.platform}"
        ) from error


def _requested_extras(
    wheels: Mapping[str, _Wheel],
    input_requirements: Sequence[str],
    environment: MarkerEnvironment,
) -> dict[str, set[str]]:
    """Wheel -> its extras that the inputs or other wheels request."""
    from packaging.requirements import InvalidRequirement, Requirement

    queue: list[Requirement] = []
    for wheel in wheels.values():
        queue += [requirement for requirement, _ in wheel.active((), environment)]
    for text in input_requirements:
        try:
            queue.append(Requirement(text))
        except InvalidRequirement:
            continue  # an installer option, which requests no extras
    extras: dict[str, set[str]] = {}
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        wheel_extras = extras.setdefault(name, set())
        new = {canonicalize_name(extra) for extra in requirement.extras} - wheel_extras
        wheel_extras.update(new)
        if new and name in wheels:
            for further, extra in wheels[name].active(sorted(new), environment):
                if extra:
                    queue.append(further)
    return extras


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


def _problems(
    wheel: _Wheel,
    extras: Sequence[str],
    environment: MarkerEnvironment,
    locked: LockedPackages,
) -> Iterator[str]:
    """What the lock does not have of a wheel's requirements."""
    python = environment["python_full_version"]
    if not wheel.python.contains(python, prereleases=True):
        yield f"needs Python {wheel.python}, and python is {python}"
    for requirement, extra in wheel.active(extras, environment):
        needs = f"needs {requirement.name}{requirement.specifier}"
        if extra:
            needs += f" (for its extra `{extra}`)"
        version = locked.version(requirement.name)
        if version is None:
            yield f"{needs}, which is not in the lock"
            continue
        is_comparable = version != "" and not requirement.url
        if is_comparable and not requirement.specifier.contains(version, prereleases=True):
            yield f"{needs}, and {requirement.name} is {version}"
