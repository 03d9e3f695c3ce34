"""Whether the versions that wheels ask for are those that are locked: each wheel's own metadata, its markers and extras evaluated for
the lock's platform and Python, against the lock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from provision.adapters.uv import WheelMetadata
from provision.lockfile.conda_lock_v1_contents import LockEntry
from provision.lockfile.joint_solve import AS_WHEELS
from provision.lockfile.verify.conda_names import conda_names, is_python_package
from provision.lockfile.verify.model import LockFinding

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

# os_name, sys_platform, platform_system, platform_machine as Python says them there (PEP 508).
MACHINES = {
    "linux-64": ("posix", "linux", "Linux", "x86_64"),
    "linux-aarch64": ("posix", "linux", "Linux", "aarch64"),
    "linux-ppc64le": ("posix", "linux", "Linux", "ppc64le"),
    "osx-64": ("posix", "darwin", "Darwin", "x86_64"),
    "osx-arm64": ("posix", "darwin", "Darwin", "arm64"),
    "win-64": ("nt", "win32", "Windows", "AMD64"),
}
Environment = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What came of looking: what is not satisfied, and by package why what it needs could not be looked at."""

    findings: tuple[LockFinding, ...] = ()
    absent: frozenset[tuple[str, str]] = (
        frozenset()
    )  # package, and the name of what it needs and is not there
    unchecked: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Wheel:
    """A locked wheel and what it needs, of which every part was found to be understood."""

    entry: LockEntry
    python: SpecifierSet
    requires: tuple[Requirement, ...]

    def active(
        self, extras: Iterable[str], environment: Environment
    ) -> Iterator[tuple[Requirement, str]]:
        """The requirements that hold in the environment, each with the extra that brings it ("": none)."""
        for wanted in self.requires:
            for extra in ("", *extras):
                if wanted.marker is None or wanted.marker.evaluate({**environment, "extra": extra}):
                    yield wanted, extra
                    break


def of_wheels(
    entries: Sequence[LockEntry], said: Mapping[str, WheelMetadata | str], asked: Sequence[str] = ()
) -> Needs:
    """Of one platform's wheels. said: each wheel's metadata by address, or why it could not be had. asked: the requirements of the
    inputs, whose extras are wanted, too."""
    environment = _environment(entries)
    wheels: dict[str, _Wheel] = {}
    unchecked: dict[str, str] = {}
    for entry in (entry for entry in entries if entry.manager == "pip"):
        known = (
            environment
            if isinstance(environment, str)
            else _known(entry, said.get(entry.url), environment)
        )
        if isinstance(known, str):
            unchecked[entry.name] = known
        else:
            wheels[canonicalize_name(entry.name)] = known
    if isinstance(environment, str):
        return Needs(unchecked=unchecked)
    extras = _extras(wheels, asked, environment)
    there, findings, absent = _There(entries), [], set()
    for name, wheel in wheels.items():
        for missing, text in _problems(wheel, sorted(extras.get(name, ())), environment, there):
            findings.append(
                LockFinding(
                    platform=wheel.entry.platform,
                    package=wheel.entry.name,
                    kind="dependency",
                    message=text,
                )
            )
            absent |= {(wheel.entry.name, missing)} if missing else set()
    return Needs(findings=tuple(findings), absent=frozenset(absent), unchecked=unchecked)


def _known(
    entry: LockEntry, said: WheelMetadata | str | None, environment: Environment
) -> _Wheel | str:
    """A wheel with what it needs, or why that is not known."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    if not isinstance(said, WheelMetadata):
        return said or "its metadata was not asked for"
    try:
        if canonicalize_name(said.name) != canonicalize_name(entry.name) or Version(
            said.version
        ) != Version(entry.version):
            return f"its metadata is of {said.name} {said.version}"[:200]
        requires = tuple(Requirement(text) for text in said.requires)
        wheel = _Wheel(entry=entry, python=SpecifierSet(said.requires_python), requires=requires)
        wheel.python.contains(environment["python_full_version"])
        list(wheel.active((), environment))
    except ValueError as error:  # packaging's, for what is no requirement, specifier or version
        return f"its metadata is not understood ({' '.join(str(error).split())[:200]})"
    return wheel


def _environment(entries: Sequence[LockEntry]) -> Environment | str:
    """What markers are evaluated for, or why that is not known."""
    python = next(
        (entry for entry in entries if entry.manager == "conda" and entry.name == "python"), None
    )
    if python is None or python.platform not in MACHINES:
        return (
            "the lock names no Python"
            if python is None
            else f"what Python says of {python.platform} is not known"
        )
    os_name, sys_platform, system, machine = MACHINES[python.platform]
    pypy = "pypy" in python.build_string
    return {
        "os_name": os_name,
        "sys_platform": sys_platform,
        "platform_system": system,
        "platform_machine": machine,
        "platform_release": "",  # of the machine that it will run on: nobody knows
        "platform_version": "",
        "platform_python_implementation": "PyPy" if pypy else "CPython",
        "implementation_name": "pypy" if pypy else "cpython",
        "implementation_version": python.version,
        "python_full_version": python.version,
        "python_version": ".".join(python.version.split(".")[:2]),
    }


def _extras(
    wheels: Mapping[str, _Wheel], asked: Sequence[str], environment: Environment
) -> dict[str, set[str]]:
    """Wheel -> the extras that are wanted of it, by the inputs or by another wheel."""
    found: dict[str, set[str]] = {}
    ahead = [
        wanted for wheel in wheels.values() for wanted, _ in wheel.active((), environment)
    ] + list(_readable(asked))
    while ahead:
        wanted = ahead.pop()
        name = canonicalize_name(wanted.name)
        more = {canonicalize_name(extra) for extra in wanted.extras} - found.get(name, set())
        found.setdefault(name, set()).update(more)
        if more and name in wheels:
            ahead += [
                wanted for wanted, extra in wheels[name].active(sorted(more), environment) if extra
            ]
    return found


def _readable(texts: Iterable[str]) -> Iterator[Requirement]:
    from packaging.requirements import InvalidRequirement, Requirement

    for text in texts:
        with contextlib.suppress(InvalidRequirement):
            yield Requirement(text)


class _There:
    """What a lock holds for Python, by a wheel's name."""

    def __init__(self, entries: Sequence[LockEntry]) -> None:
        self._wheels = {
            canonicalize_name(entry.name): entry.version
            for entry in entries
            if entry.manager == "pip"
        }
        self._conda = {
            canonicalize_name(AS_WHEELS.get(entry.name, entry.name)): entry
            for entry in entries
            if entry.manager == "conda"
        }

    def version(self, name: str) -> str | None:
        """None: it is not there. "": it is, in a version that cannot be compared."""
        from packaging.version import InvalidVersion, Version

        package = self._conda.get(canonicalize_name(name))
        found = self._wheels.get(canonicalize_name(name)) or (
            package.version if package and is_python_package(package) else ""
        )
        try:
            return str(Version(found))
        except InvalidVersion:  # or conda has it under another name, and may count in another way
            return "" if found or conda_names(name) & self._conda.keys() else None


def _problems(
    wheel: _Wheel, extras: Sequence[str], environment: Environment, there: _There
) -> Iterator[tuple[str, str]]:
    """What is not satisfied, in words, after its name where it is absent."""
    python = environment["python_full_version"]
    if not wheel.python.contains(python, prereleases=True):
        yield "", f"needs Python {wheel.python}, and python is {python}"
    for wanted, extra in wheel.active(extras, environment):
        needs = f"needs {wanted.name}{wanted.specifier}" + (
            f" (for its extra `{extra}`)" if extra else ""
        )
        found = there.version(wanted.name)
        if found is None:
            yield canonicalize_name(wanted.name), f"{needs}, which is not in the lock"
        elif found and not wanted.url and not wanted.specifier.contains(found, prereleases=True):
            yield "", f"{needs}, and {wanted.name} is {found}"
