"""conda-lock's content hash, by which its own `--check-input-hash` recognizes that a lock matches
the two input files.

Importing conda-lock takes 0.45 s, half as long as a whole lock takes. So we hash inputs in the
forms that we render as conda-lock 4 does, and leave only other forms to conda-lock. A test
compares the two on all sorts of requirements.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
from collections.abc import Sequence
from typing import Any

from provision.catalog import DATA
from provision.core.paths import ENVIRONMENT, VIRTUAL_PACKAGES
from provision.core.platforms import Platform
from provision.core.tempdirs import temporary_directory
from provision.lockfile.input_files import LockInputs, VirtualPackages

# The forms of conda requirements and channels that we render; conda-lock hashes all others.
VERSION = r"[0-9]+(?:\.[0-9]+)*"
COMPARISON = rf"(?:<=?|>=?|!=){VERSION}"
CONDA_REQUIREMENT = re.compile(
    rf"(?:(?P<channel>[a-z][a-z0-9-]*)::)?(?P<name>[a-z0-9][a-z0-9._-]*)"
    rf"(?:=(?P<fuzzy>{VERSION})(?:\.\*)?"
    rf"|=(?P<exact>{VERSION}(?:\.\*)?|\*)=(?P<build>[A-Za-z0-9_.*]+)"
    rf"|(?P<range>{COMPARISON}(?:,{COMPARISON})*))?"
)
CHANNEL = re.compile(r"[a-z][a-z0-9-]*")
TIMESTAMP = 1577854800000  # of every virtual package (conda-lock's DEFAULT_TIME)
Row = dict[str, Any]


def content_hashes(inputs: LockInputs) -> dict[Platform, str]:
    """Platform -> conda-lock's hash of the inputs."""
    return own_hashes(inputs) or conda_lock_hashes(inputs)


def own_hashes(inputs: LockInputs) -> dict[Platform, str] | None:
    """The hashes, or None if only conda-lock can compute them."""
    if not inputs.plain or not all(CHANNEL.fullmatch(channel) for channel in inputs.channels):
        return None
    for machine in inputs.machines.values():
        if any(len(version.split()) > 1 for _, version in machine):  # a version and a build
            return None
    rows = [_conda_row(text) for text in inputs.conda] + [_pip_row(text) for text in inputs.pip]
    if inputs.pip:  # conda-lock adds pip wherever there is a pip section
        rows.append(_row("pip", "conda", "*"))
    by_name: dict[tuple[str, str], Row] = {}
    for row in rows:
        if row is None:
            return None
        by_name[row["manager"], row["name"]] = row
    return {
        platform: _hash(inputs.channels, list(by_name.values()), platform, machine)
        for platform, machine in inputs.machines.items()
    }


def _hash(
    channels: Sequence[str], rows: Sequence[Row], platform: Platform, machine: VirtualPackages
) -> str:
    channel_texts = [
        json.dumps({"url": channel, "used_env_vars": []}, separators=(",", ":"))
        for channel in channels
    ]
    content = {
        "channels": channel_texts,
        "specs": sorted(rows, key=lambda row: (row["manager"], row["name"])),
        "virtual_package_hash": {
            "noarch": _subdir("noarch", ()),
            platform: _subdir(platform, machine),
        },
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _conda_row(text: str) -> Row | None:
    match = CONDA_REQUIREMENT.fullmatch(text)
    if match is None:
        return None
    version = match["exact"] or match["range"] or ""
    if match["fuzzy"]:
        version = f"{match['fuzzy']}.*"
    row = _row(match["name"], "conda", version)
    return {**row, "build": match["build"], "conda_channel": match["channel"]}


def _pip_row(text: str) -> Row | None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    requirement = Requirement(text)
    if requirement.url or requirement.marker or "===" in text:
        return None
    row = _row(canonicalize_name(requirement.name), "pip", str(requirement.specifier) or "*")
    return {**row, "extras": sorted(requirement.extras)}


def _row(name: str, manager: str, version: str) -> Row:
    """A requirement as conda-lock's model of a dependency prints it."""
    return {
        "category": "main",
        "extras": [],
        "build": None,
        "conda_channel": None,
        "hash": None,
        "name": name,
        "manager": manager,
        "version": version,
    }


def _subdir(subdir: str, machine: VirtualPackages) -> dict[str, object]:
    """The repodata of virtual packages that conda-lock would make for a solver."""
    packages = {}
    for name, version in machine:
        packages[f"{name}-{version}-0.tar.bz2"] = {
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
    return {"info": {"subdir": subdir}, "packages": packages}


_import_lock = threading.Lock()


def load_conda_lock() -> None:
    """Import conda-lock; call this before importing any of its modules.

    Its modules import each other in a circle: of two threads that start with different ones, each
    gets half-initialized modules (tried).
    """
    with _import_lock:
        import conda_lock  # noqa: F401 - for the import alone


def conda_lock_hashes(inputs: LockInputs) -> dict[Platform, str]:
    """The hashes by conda-lock's own code, from copies of the two files."""
    load_conda_lock()
    from conda_lock.content_hash import compute_content_hashes
    from conda_lock.src_parser import make_lock_spec
    from conda_lock.virtual_package import virtual_package_repo_from_specification

    names = str(DATA / "pypi-conda-names.yml")
    with temporary_directory("hash") as folder:
        (folder / ENVIRONMENT).write_text(inputs.environment, encoding="utf-8")
        (folder / VIRTUAL_PACKAGES).write_text(inputs.virtual_packages, encoding="utf-8")
        spec = make_lock_spec(
            src_files=[folder / ENVIRONMENT],
            platform_overrides=list(inputs.machines),
            mapping_url=names,
        )
        machines = virtual_package_repo_from_specification(folder / VIRTUAL_PACKAGES)
        try:
            hashes: dict[Platform, str] = compute_content_hashes(spec, machines)
        finally:
            # conda-lock leaves this to an exit handler, which need not run.
            shutil.rmtree(machines.base_path)
    return hashes
