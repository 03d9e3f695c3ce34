"""conda-lock's content hash: tells its own `--check-input-hash` whether a lock is that of the two files.

conda-lock takes 0.45 s to import, which is half of a lock. So what we render is hashed here, in the way of conda-lock 4, and only
what is written in other ways is left to conda-lock. A test compares the two on requirements of all sorts.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from provision.catalog import DATA
from provision.core.tempdirs import temporary_directory
from provision.core.types import Platform
from provision.lockfile.input_files import ENVIRONMENT, VIRTUAL_PACKAGES, LockInputs, Machine

# What we render is among these; whatever is not goes to conda-lock.
VERSION = r"[0-9]+(?:\.[0-9]+)*"
CONDA = re.compile(
    rf"(?:(?P<channel>[a-z][a-z0-9-]*)::)?(?P<name>[a-z0-9][a-z0-9._-]*)"
    rf"(?:=(?P<fuzzy>{VERSION})(?:\.\*)?|=(?P<exact>{VERSION})=(?P<build>[A-Za-z0-9_.*]+)|(?P<range>(?:<=?|>=?|!=){VERSION}(?:,(?:<=?|>=?|!=){VERSION})*))?"
)
CHANNEL = re.compile(r"[a-z][a-z0-9-]*")
KEYS = {"name", "channels", "dependencies"}
TIMESTAMP = 1577854800000  # of every virtual package (conda-lock's DEFAULT_TIME)
Dependency = dict[str, Any]


def content_hashes(wanted: LockInputs) -> dict[Platform, str]:
    """Platform -> conda-lock's hash of the inputs."""
    return ours(wanted) or theirs(wanted)


def ours(wanted: LockInputs) -> dict[Platform, str] | None:
    """None for inputs that hold what only conda-lock itself knows how to read."""
    if not wanted.plain or not all(CHANNEL.fullmatch(channel) for channel in wanted.channels):
        return None
    rows = [_conda(text) for text in wanted.conda] + [_pip(text) for text in wanted.pip]
    if wanted.pip:
        rows.append(
            _dependency("pip", "conda", "*")
        )  # conda-lock adds it wherever there is a pip section
    known = {(row["manager"], row["name"]): row for row in rows if row}
    machines = [
        word
        for machine in wanted.machines.values()
        for _, version in machine
        for word in version.split()[1:]
    ]
    if None in rows or machines:
        return None
    return {
        platform: _hash(wanted.channels, list(known.values()), platform, machine)
        for platform, machine in wanted.machines.items()
    }


def _hash(
    channels: Sequence[str], rows: Sequence[Dependency], platform: Platform, machine: Machine
) -> str:
    content = {
        "channels": [
            json.dumps({"url": channel, "used_env_vars": []}, separators=(",", ":"))
            for channel in channels
        ],
        "specs": sorted(rows, key=lambda row: (row["manager"], row["name"])),
        "virtual_package_hash": {
            "noarch": _subdir("noarch", ()),
            platform: _subdir(platform, machine),
        },
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _conda(text: str) -> Dependency | None:
    found = CONDA.fullmatch(text)
    if found is None:
        return None
    version = f"{found['fuzzy']}.*" if found["fuzzy"] else found["exact"] or found["range"] or ""
    return _dependency(
        found["name"], "conda", version, build=found["build"], conda_channel=found["channel"]
    )


def _pip(text: str) -> Dependency | None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    wanted = Requirement(text)
    if wanted.url or wanted.marker or "===" in text:
        return None
    return _dependency(
        canonicalize_name(wanted.name),
        "pip",
        str(wanted.specifier) or "*",
        extras=sorted(wanted.extras),
    )


def _dependency(name: str, manager: str, version: str, **more: Any) -> Dependency:
    plain: Dependency = {
        "category": "main",
        "extras": [],
        "build": None,
        "conda_channel": None,
        "hash": None,
    }
    return {**plain, "name": name, "manager": manager, "version": version, **more}


def _subdir(subdir: str, machine: Machine) -> dict[str, Any]:
    """The channel of virtual packages that conda-lock would make for a solver."""
    packages = {
        f"{name}-{version}-0.tar.bz2": {
            "name": name,
            "version": version,
            "build": "0",
            "build_number": 0,
            "build_string": "",
            "depends": [],
            "noarch": "",
            "package_type": "virtual_system",
            "subdir": subdir,
            "timestamp": TIMESTAMP,
        }
        for name, version in machine
    }
    return {"info": {"subdir": subdir}, "packages": packages}


_importing = threading.Lock()


def load_conda_lock() -> None:
    """Its modules import each other in a circle: two threads that begin at different ones see half of them (tried). So whoever needs
    one of them comes through here first."""
    with _importing:
        import conda_lock  # noqa: F401 - for the import alone


def theirs(wanted: LockInputs) -> dict[Platform, str]:
    """By conda-lock's own reading of the two files."""
    load_conda_lock()
    from conda_lock.content_hash import compute_content_hashes
    from conda_lock.src_parser import make_lock_spec
    from conda_lock.virtual_package import virtual_package_repo_from_specification

    names = (DATA / "pypi-conda-names.yml").absolute().as_uri()
    with _written(wanted) as folder:
        spec = make_lock_spec(
            src_files=[folder / ENVIRONMENT],
            platform_overrides=list(wanted.machines),
            mapping_url=names,
        )
        machines = virtual_package_repo_from_specification(folder / VIRTUAL_PACKAGES)
        try:
            hashes: dict[Platform, str] = compute_content_hashes(spec, machines)
        finally:
            shutil.rmtree(
                machines.base_path
            )  # conda-lock leaves it to an exit handler, which need not run
    return hashes


@contextmanager
def _written(wanted: LockInputs) -> Iterator[Path]:
    """A folder, for as long as it is needed, with the two files as they are locked."""
    with temporary_directory("hash") as folder:
        (folder / ENVIRONMENT).write_text(wanted.environment, encoding="utf-8")
        (folder / VIRTUAL_PACKAGES).write_text(wanted.virtual_packages, encoding="utf-8")
        yield folder
