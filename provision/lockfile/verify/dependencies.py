"""Whether what each package of a lock needs is in the lock, within its platform."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from packaging.utils import canonicalize_name

from provision.adapters import conda
from provision.lockfile.conda_lock_v1_contents import LockEntry, LockFile
from provision.lockfile.conda_lock_v1_writer import PYTHON_FROM
from provision.lockfile.input_files import VIRTUAL_PACKAGES
from provision.lockfile.verify.conda_names import conda_names
from provision.lockfile.verify.inputs import Machine
from provision.lockfile.verify.model import LockFinding


def of_conda(
    entries: Sequence[LockEntry],
    machine: Machine | None,
    lock: LockFile,
    constrains: Mapping[str, tuple[str, ...]],
) -> Iterator[LockFinding]:
    there = {
        entry.name: conda.PackageBuild(
            name=entry.name, version=entry.version, build=entry.build_string
        )
        for entry in entries
        if entry.manager == "conda"
    }
    platform = entries[0].platform if entries else ""
    offers = machine.offers.get(platform, {}) if machine else {}
    offered = {name: _virtual(name, version) for name, version in offers.items()}
    for entry in entries:
        if entry.manager != "conda":
            continue
        # This machine's Python is for this machine's glibc; the lock's metadata says so.
        ours = lock.custom.get(PYTHON_FROM) == "host" and entry.url.startswith("file:")
        for name, bound in entry.depends:
            if name.startswith("__") and (
                not (machine and machine.knows(platform, name)) or (ours and name == "__glibc")
            ):
                continue
            for spec, problem in conda.unsatisfied_specs(
                [f"{name} {bound}".strip()], {**there, **offered}
            ):
                message = f"needs {spec}, and {name} {problem}" + (
                    f" in {VIRTUAL_PACKAGES}" if name.startswith("__") else ""
                )
                yield LockFinding(
                    platform=entry.platform, package=entry.name, kind="dependency", message=message
                )
        for spec, problem in conda.unsatisfied_specs(
            constrains.get(entry.url, ()), {**there, **offered}, optional=True
        ):
            message = f"constrains {spec}, and that {problem}"
            yield LockFinding(
                platform=entry.platform, package=entry.name, kind="constraint", message=message
            )


def _virtual(name: str, said: str) -> conda.PackageBuild:
    """What virtual-packages.yml says of the machine: a version, and for some a build (`1 x86_64`)."""
    version, _, build = said.partition(" ")
    return conda.PackageBuild(name=name, version=version, build=build or "0")


def of_pip(
    entries: Sequence[LockEntry], told: Collection[tuple[str, str]] = ()
) -> Iterator[LockFinding]:
    """conda-lock keeps wheels' requirements as edges without versions: whether what they name is there. told: package and name of
    what the wheels' own metadata missed already."""
    wheels = {canonicalize_name(entry.name) for entry in entries if entry.manager == "pip"}
    packages = {canonicalize_name(entry.name) for entry in entries if entry.manager == "conda"}
    for entry in entries:
        if entry.manager != "pip":
            continue
        for name, _ in entry.depends:
            if (
                canonicalize_name(name) not in wheels
                and not conda_names(name) & packages
                and (entry.name, canonicalize_name(name)) not in told
            ):
                message = f"needs {name}, which is not in the lock"
                yield LockFinding(
                    platform=entry.platform, package=entry.name, kind="dependency", message=message
                )
