"""Checks a lock against its inputs, if they are in the same folder: their content hash, and the
machines that the solver assumed.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.catalog import DATA
from provision.core.errors import InvalidSpec
from provision.core.paths import ENVIRONMENT, VIRTUAL_PACKAGES
from provision.core.yaml_text import YamlError, parse_yaml, read_source
from provision.lockfile.conda_lock_v1 import INPUTS, LockFile
from provision.lockfile.content_hash import load_conda_lock, own_hashes
from provision.lockfile.input_files import read_inputs
from provision.lockfile.verify.entries import LockFinding


@dataclass(frozen=True, kw_only=True)
class AssumedMachines:
    """Platform -> virtual package -> version: what the solver assumed.

    complete: it assumed nothing else.
    """

    virtual_packages: Mapping[str, Mapping[str, str]]
    complete: bool

    def includes(self, platform: str, name: str) -> bool:
        """Whether we know what the solver assumed about this virtual package."""
        if platform not in self.virtual_packages:
            return False
        return self.complete or name in self.virtual_packages[platform]


def assumed_machines(lock: LockFile) -> AssumedMachines | None:
    """From the file next to the lock; None if it is missing or malformed.

    A lock that conda-lock itself made assumes conda-lock's default machine, except for CUDA, which
    is an option of its command.
    """
    path = lock.path.parent / VIRTUAL_PACKAGES
    is_default = not path.is_file()
    if is_default:
        if INPUTS in lock.custom_metadata:
            return None  # ours always have such a file
        load_conda_lock()
        import conda_lock

        path = Path(conda_lock.__file__).parent / "default-virtual-packages.yaml"
    document = _read_yaml(path)
    subdirs = document.get("subdirs") if isinstance(document, dict) else None
    if not isinstance(subdirs, dict):
        return None
    machines: dict[str, dict[str, str]] = {}
    for platform, row in subdirs.items():
        packages = row.get("packages") if isinstance(row, dict) else None
        if not isinstance(packages, dict):
            return None
        machine = {str(name): str(version) for name, version in packages.items()}
        if is_default:
            machine.pop("__cuda", None)
        machines[platform] = machine
    return AssumedMachines(virtual_packages=machines, complete=not is_default)


def pip_requirements(lock: LockFile) -> tuple[str, ...]:
    """The pip requirements of the environment.yml next to the lock; empty if it is missing or has
    another form.
    """
    path = lock.path.parent / ENVIRONMENT
    if ENVIRONMENT not in lock.sources or not path.is_file():
        return ()
    document = _read_yaml(path)
    dependencies = document.get("dependencies") if isinstance(document, dict) else None
    requirements: list[str] = []
    for row in dependencies if isinstance(dependencies, list) else ():
        section = row.get("pip") if isinstance(row, dict) else None
        if isinstance(section, list):
            requirements += [str(text) for text in section]
    return tuple(requirements)


def _read_yaml(path: Path) -> Any:
    """The document, or None for a file that cannot be read: other findings and notes name it."""
    try:
        return parse_yaml(read_source(path))
    except (YamlError, OSError):
        return None


def input_findings(lock: LockFile, hashes: Mapping[str, set[str]] | None) -> Iterator[LockFinding]:
    """Platforms whose content hash does not match these inputs.

    hashes: as `input_hashes` returns them.
    """
    for platform, content_hash in sorted(lock.content_hash.items()):
        if hashes is not None and platform in hashes and content_hash not in hashes[platform]:
            sources = ", ".join(lock.sources)
            message = f"was not locked from the current {sources}: the content hash differs"
            yield LockFinding(
                platform=platform, package=lock.path.name, kind="inputs", message=message
            )


def input_hashes(lock: LockFile) -> Mapping[str, set[str]] | None:
    """Platform -> conda-lock's possible content hashes of the inputs next to the lock; None if the
    inputs cannot be read.

    There are several: with the virtual packages next to the lock and with conda-lock's defaults,
    since a lock does not say which were used.
    """
    sources = [lock.path.parent / source for source in lock.sources]
    if not sources:
        return None
    for source in sources:
        if not source.is_file() or source.suffix not in (".yml", ".yaml"):
            return None
        if source.name == "meta.yaml":
            return None  # a recipe: a Jinja template, which conda-lock would run outside a sandbox
    if INPUTS in lock.custom_metadata and not (lock.path.parent / VIRTUAL_PACKAGES).is_file():
        return None  # ours always have such a file, and the hash includes it
    if _matches_our_hashes(lock, sources):
        return {platform: {content_hash} for platform, content_hash in lock.content_hash.items()}
    with contextlib.redirect_stderr(io.StringIO()):
        return _conda_lock_hashes(lock, sources)


def _matches_our_hashes(lock: LockFile, sources: Sequence[Path]) -> bool:
    """Whether the lock's hashes are those that we compute without importing conda-lock (0.5 s)."""
    virtual_packages = lock.path.parent / VIRTUAL_PACKAGES
    if [source.name for source in sources] != [ENVIRONMENT] or not virtual_packages.is_file():
        return False
    try:
        inputs = read_inputs(
            sources[0].read_text(encoding="utf-8"),
            virtual_packages.read_text(encoding="utf-8"),
            lock.path.parent,
        )
    except (InvalidSpec, OSError, UnicodeDecodeError):
        return False
    return dict(lock.content_hash) == (own_hashes(inputs) or {})


def _conda_lock_hashes(lock: LockFile, sources: Sequence[Path]) -> Mapping[str, set[str]] | None:
    """None if conda-lock cannot read the inputs."""
    load_conda_lock()
    from conda_lock.content_hash import backwards_compatible_content_hashes
    from conda_lock.src_parser import make_lock_spec
    from conda_lock.virtual_package import (
        default_virtual_package_repodata,
        virtual_package_repo_from_specification,
    )

    names = str(DATA / "pypi-conda-names.yml")
    virtual_packages = lock.path.parent / VIRTUAL_PACKAGES
    machines: list[Any] = []
    try:
        spec = make_lock_spec(
            src_files=list(sources), platform_overrides=list(lock.platforms), mapping_url=names
        )
        if virtual_packages.is_file():
            machines.append(virtual_package_repo_from_specification(virtual_packages))
    except Exception:
        # Only conda-lock's parsers run here, on files that may be anybody's. They let everything
        # through that conda's, poetry's and YAML's parsers raise, and accidents with wrong types.
        return None
    machines.append(default_virtual_package_repodata())
    machines.append(default_virtual_package_repodata(cuda_version=""))
    hashes: dict[str, set[str]] = {platform: set() for platform in lock.platforms}
    try:
        for platform in lock.platforms:
            for machine in machines:
                hashes[platform].update(
                    backwards_compatible_content_hashes(spec, machine, platform)
                )
    finally:
        for machine in machines:
            # conda-lock leaves this to an exit handler, which need not run.
            shutil.rmtree(machine.base_path)
    return hashes
