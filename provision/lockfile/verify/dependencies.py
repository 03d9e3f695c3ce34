"""Checks that the lock has what each of its packages needs, within the platform."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from packaging.utils import canonicalize_name

from provision.adapters import conda
from provision.lockfile.conda_lock_v1 import PYTHON_FROM, LockEntry, LockFile
from provision.lockfile.input_files import VIRTUAL_PACKAGES
from provision.lockfile.verify.inputs import AssumedMachines
from provision.lockfile.verify.model import LockFinding, conda_names, finding


def conda_findings(
    entries: Sequence[LockEntry],
    machines: AssumedMachines | None,
    lock: LockFile,
    constrains: Mapping[str, tuple[str, ...]],
) -> Iterator[LockFinding]:
    """Unmet requirements of one platform's conda packages.

    machines: None if they are not known. constrains: of each package, by URL, where its channel
    told it.
    """
    if not entries:
        return
    platform = entries[0].platform
    candidates = {}
    for entry in entries:
        if entry.manager == "conda":
            candidates[entry.name] = conda.PackageBuild(
                name=entry.name, version=entry.version, build=entry.build_string
            )
    virtual_packages = machines.virtual_packages.get(platform, {}) if machines else {}
    for name, text in virtual_packages.items():
        version, _, build = text.partition(" ")  # some have a build: `1 x86_64`
        candidates[name] = conda.PackageBuild(name=name, version=version, build=build or "0")
    for entry in entries:
        if entry.manager != "conda":
            continue
        # This machine's Python is for this machine's glibc; the lock's metadata says so.
        is_host_python = lock.custom_metadata.get(PYTHON_FROM) == "host" and entry.url.startswith(
            "file:"
        )
        for name, constraint in entry.depends:
            is_virtual = name.startswith("__")
            if is_virtual and (machines is None or not machines.includes(platform, name)):
                continue
            if is_host_python and name == "__glibc":
                continue
            requirement = f"{name} {constraint}".strip()
            for spec, problem in conda.unsatisfied_specs([requirement], candidates):
                where = f" in {VIRTUAL_PACKAGES}" if is_virtual else ""
                yield finding(entry, "dependency", f"needs {spec}, and {name} {problem}{where}")
        limits = constrains.get(entry.url, ())
        for spec, problem in conda.unsatisfied_specs(limits, candidates, optional=True):
            yield finding(entry, "constraint", f"constrains {spec}, and that {problem}")


def wheel_findings(
    entries: Sequence[LockEntry], reported: Collection[tuple[str, str]] = ()
) -> Iterator[LockFinding]:
    """Packages that the entries of wheels name as dependencies and the lock lacks; a lock has no
    versions for these.

    reported: package and missing name that the wheels' own metadata already gave.
    """
    wheel_names = {canonicalize_name(entry.name) for entry in entries if entry.manager == "pip"}
    package_names = {canonicalize_name(entry.name) for entry in entries if entry.manager == "conda"}
    for entry in entries:
        if entry.manager != "pip":
            continue
        for name, _ in entry.depends:
            canonical = canonicalize_name(name)
            if canonical in wheel_names or conda_names(name) & package_names:
                continue
            if (entry.name, canonical) not in reported:
                yield finding(entry, "dependency", f"needs {name}, which is not in the lock")
