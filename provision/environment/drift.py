"""How a prefix differs from its lock: by packages and, on request, by every file's hash.

Nothing here changes the prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Literal

from packaging.utils import canonicalize_name

from provision.adapters.installed_files import conda_records
from provision.adapters.listed_files import listed_files
from provision.core.dataclass import frozen
from provision.core.types import Lock, Prefix
from provision.environment import install_record, runtime_package
from provision.environment.install_record import RUNTIME, InstallRecord
from provision_runtime.facts.digests import file_sha256


@frozen
class Drift:
    """One difference between a prefix and its lock."""

    kind: Literal["missing", "extra", "version", "changed", "absent", "unreadable"]
    name: str
    detail: str


def is_current(prefix: Prefix | None, lock: Lock) -> bool:
    """Whether the prefix was made from this lock, has an interpreter, and records exactly the
    locked packages.
    """
    if prefix is None or prefix.lock_sha256 != lock.sha256 or not prefix.python.exists():
        return False
    return not find_package_drift(prefix, lock)


def find_drift(
    prefix: Prefix, lock: Lock, *, files: bool, sha256_of: Callable[[str], str] = file_sha256
) -> list[Drift]:
    """How a prefix differs from its lock, by packages and by the digest of each; with `files` also
    by every recorded file's hash, which `sha256_of` computes.
    """
    drifts = [*find_package_drift(prefix, lock), *_runtime_drift(prefix)]
    record = install_record.read(prefix.path)
    if files:
        byte_code = record.byte_code if record is not None else {}
        listed = [*_listed_hashes(prefix), *(("(byte code)", *row) for row in byte_code.items())]
        for package, file, sha256 in listed:
            path = prefix.path / file
            if sha256 is None:
                drifts.append(Drift(kind="unreadable", name=package, detail=file))
            elif not path.is_file():
                drifts.append(Drift(kind="absent", name=package, detail=file))
            elif sha256_of(str(path)) != sha256:
                drifts.append(Drift(kind="changed", name=package, detail=file))
    if record is not None:
        drifts += _digest_drift(prefix, record, {canonicalize_name(drift.name) for drift in drifts})
    return drifts


def _digest_drift(
    prefix: Prefix, record: InstallRecord, reported: Collection[str]
) -> Iterator[Drift]:
    """Distributions whose files, by name, size and permissions, are not as they were installed.

    reported: those of which a difference is known already.
    """
    current = install_record.digests(prefix.path)
    for name, entry in record.distributions.items():
        is_reported = canonicalize_name(name) in reported or name not in current
        if is_reported or current[name] == entry:
            continue
        detail = "files were added, removed or changed since it was installed"
        if entry["kind"] == "files":
            detail = "files that belong to no package were added, removed or changed"
        yield Drift(kind="changed", name=name, detail=detail)


def find_package_drift(prefix: Prefix, lock: Lock) -> list[Drift]:
    """Locked packages that are missing or have another version, and packages that no lock names."""
    locked_conda = {
        package.name: f"{package.version} {package.build}" for package in lock.by("conda")
    }
    installed_conda = {
        record["name"]: f"{record.get('version')} {record.get('build')}"
        for record in conda_records(prefix.path).values()
    }
    locked_wheels: dict[str, str] = {}
    editables = set()
    for package in lock.by("pip"):
        locked_wheels[canonicalize_name(package.name)] = package.version
        if package.is_editable:
            editables.add(canonicalize_name(package.name))
    installed_wheels = {}
    for name, version in _installed_wheels(prefix).items():
        if name in editables:  # its version is what its folder says at any time
            version = locked_wheels[name]
        # Some dist-info folders belong to conda packages (pip itself), and one to our runtime
        # package.
        is_other = name in locked_conda or name == RUNTIME
        if name in locked_wheels or not is_other:
            installed_wheels[name] = version
    return [
        *_compare(locked_conda, installed_conda),
        *_compare(locked_wheels, installed_wheels),
    ]


def _compare(locked: Mapping[str, str], installed: Mapping[str, str]) -> Iterator[Drift]:
    for name in sorted({*locked, *installed}):
        locked_version = locked.get(name, "").strip()
        installed_version = installed.get(name, "").strip()
        if name not in installed:
            detail = f"locked {locked_version}, not installed"
            yield Drift(kind="missing", name=name, detail=detail)
        elif name not in locked:
            detail = f"installed {installed_version}, not in the lock"
            yield Drift(kind="extra", name=name, detail=detail)
        elif not _is_same_version(locked[name], installed[name]):
            detail = f"locked {locked_version}, installed {installed_version}"
            yield Drift(kind="version", name=name, detail=detail)


def _is_same_version(locked: str, installed: str) -> bool:
    """Whether the versions agree; a lock without a local version accepts any.

    An index lists torch 2.3.1, and the wheel itself says 2.3.1+cu121.
    """
    if "+" not in locked:
        installed = installed.partition("+")[0]
    return locked == installed


def _runtime_drift(prefix: Prefix) -> Iterator[Drift]:
    """The runtime package against the one that this provision installs: no lock names it."""
    expected = runtime_package.load()
    installed = runtime_package.installed(prefix.path)
    if installed is None:
        detail = f"provision installs {expected.version}, not installed"
        yield Drift(kind="missing", name=RUNTIME, detail=detail)
    elif installed.version != expected.version:
        detail = f"provision installs {expected.version}, installed {installed.version}"
        yield Drift(kind="version", name=RUNTIME, detail=detail)
    elif installed.sha256 != expected.sha256:
        detail = f"RECORD of {installed.version} is not the one that provision installs"
        yield Drift(kind="changed", name=RUNTIME, detail=detail)


def _installed_wheels(prefix: Prefix) -> dict[str, str]:
    """Versions by name, from the names of the dist-info folders (PEP 376).

    Reading 60 METADATA files would take longer than everything else.
    """
    versions: dict[str, str] = {}
    for path in prefix.path.glob("lib/python*/site-packages/*.dist-info"):
        name, _, version = path.name.removesuffix(".dist-info").rpartition("-")
        versions[canonicalize_name(name)] = version
    return versions


def _listed_hashes(prefix: Prefix) -> Iterator[tuple[str, str, str | None]]:
    """Package, path from the prefix and hash of every listed file that has one; no hash for a list
    that cannot be read."""
    for file in listed_files(prefix.path):
        if file.kind == "unreadable":
            yield file.package, file.path, None
        elif file.kind == "hardlink" and file.sha256:
            yield file.package, file.path, file.sha256
