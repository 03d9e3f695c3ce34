"""The content hash of a lock: whether it matches the two input files.

Of inputs in the forms that we render it is the hash of conda-lock 4, whose `--check-input-hash` then
recognizes the lock. A test compares the two on all sorts of requirements.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from provision.core.platforms import Platform
from provision.lockfile.input_files import LockInputs, VirtualPackages

# The forms of conda requirements and channels that we render.
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
    """Platform -> the hash of the inputs. For forms that we do not render it is a hash of our own,
    and conda-lock locks again."""
    return conda_lock_hashes(inputs) or {
        platform: hashlib.sha256(f"{inputs.sha256} {platform}".encode()).hexdigest()
        for platform in inputs.machines
    }


def conda_lock_hashes(inputs: LockInputs) -> dict[Platform, str] | None:
    """conda-lock's hashes, or None for forms that it reads in ways of its own."""
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
