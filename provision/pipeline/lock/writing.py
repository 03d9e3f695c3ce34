"""Writing conda-lock.yml (v1), with conda-lock's own models, writer and content hash."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from provision.compat import DATA
from provision.model import PLATFORM, LockedPackage
from provision.pipeline.lock.asked import ENVIRONMENT, VIRTUAL_PACKAGES, Inputs

FILE = "conda-lock.yml"

# Keys of the lock's metadata.custom_metadata; conda-lock carries them along untouched.
PYTHON_FROM, PORTABLE, INPUTS = "provision_python_from", "provision_portable", "provision_inputs_sha256"


def text(wanted: Inputs, packages: Sequence[LockedPackage], *, python_from: Literal["channel", "host"]) -> str:
    """The lock file of these packages, by conda-lock's models and writer."""
    with tempfile.TemporaryDirectory(prefix="provision-") as scratch:
        folder = Path(scratch)
        (folder / ENVIRONMENT).write_text(wanted.environment, encoding="utf-8")
        (folder / VIRTUAL_PACKAGES).write_text(wanted.virtual_packages, encoding="utf-8")
        return _text(wanted, packages, folder, python_from)


def content_hash(wanted: Inputs) -> str:
    """conda-lock's hash of the inputs: tells whether a lock that another tool made is theirs."""
    with tempfile.TemporaryDirectory(prefix="provision-") as scratch:
        folder = Path(scratch)
        (folder / ENVIRONMENT).write_text(wanted.environment, encoding="utf-8")
        (folder / VIRTUAL_PACKAGES).write_text(wanted.virtual_packages, encoding="utf-8")
        return _lock_specification(folder)[1][PLATFORM]


def _text(wanted: Inputs, packages: Sequence[LockedPackage], folder: Path, python_from: str) -> str:
    from conda_lock.lockfile import write_conda_lock_file
    from conda_lock.lockfile.v1.models import DependencySource, HashModel, LockMeta
    from conda_lock.lockfile.v2prelim.models import LockedDependency, Lockfile

    spec, hashes = _lock_specification(folder)
    entries = [
        LockedDependency(
            name=package.name,
            version=package.version,
            manager=package.manager,
            platform=PLATFORM,
            dependencies=_dependencies(package),
            url=package.url,
            hash=HashModel(md5=package.md5, sha256=package.sha256),
            build=package.build or None,
            source=DependencySource(type="url", url=package.url) if package.direct else None,
            categories={"main"},
        )
        for package in packages
    ]
    portable = python_from == "channel" and not any(package.url.startswith("file:") for package in packages)
    custom = {PYTHON_FROM: python_from, PORTABLE: str(portable).lower(), INPUTS: wanted.sha256}
    meta = LockMeta(
        content_hash=hashes, channels=spec.channels, platforms=spec.platforms, sources=["environment.yml"], custom_metadata=custom
    )
    write_conda_lock_file(Lockfile(package=entries, metadata=meta), folder / FILE, metadata_choices=None)
    return (folder / FILE).read_text(encoding="utf-8")


def _dependencies(package: LockedPackage) -> dict[str, str]:
    """Name -> constraint, as conda-lock holds them. Wheels' constraints are uv's business; the edge is what is kept."""
    split = (text.partition(" ") for text in package.depends)
    return {name: (bound if package.manager == "conda" else "*") for name, _, bound in split if name}


def _lock_specification(folder: Path) -> tuple[Any, dict[str, str]]:
    """conda-lock's reading of our files, and its content hash: what `conda-lock lock --check-input-hash` compares."""
    from conda_lock.content_hash import compute_content_hashes
    from conda_lock.src_parser import make_lock_spec
    from conda_lock.virtual_package import virtual_package_repo_from_specification

    names = DATA / "pypi-conda-names.yml"
    with contextlib.redirect_stderr(io.StringIO()):
        spec = make_lock_spec(src_files=[folder / ENVIRONMENT], platform_overrides=[PLATFORM], mapping_url=names.absolute().as_uri())
        machine = virtual_package_repo_from_specification(folder / VIRTUAL_PACKAGES)
        with machine:
            return spec, compute_content_hashes(spec, machine)
