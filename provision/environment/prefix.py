"""Lock -> prefix: conda packages linked by py-rattler, wheels installed by uv, every byte against its hash.

Built beside its final name, with the paths inside already naming the final one, and swapped in by one rename: a killed build
leaves the old environment or none.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.utils import canonicalize_name

from provision.adapters import conda, uv
from provision.adapters.http import sha256_of
from provision.core.atomic import (
    backup_path,
    remove_leftovers,
    remove_leftovers_until_quiet,
    replace_directory,
    staging_path,
)
from provision.core.errors import IntegrityError, InUse, InvalidSpec, from_system
from provision.core.mirrors import NO_MIRRORS, Mirrors
from provision.core.paths import Folders
from provision.core.types import Lock, Prefix, Progress
from provision.environment import runtime_package

# The runtime package as drift names it.
RUNTIME = canonicalize_name(runtime_package.NAME)
MARKER = Path("conda-meta") / "provision.json"
# After Ctrl-C rattler's threads may link for a moment longer (on a busy machine, for seconds); nothing may be left of that.
QUIET_S = 1.0
PATIENCE_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Drift:
    """One way in which a prefix differs from its lock."""

    kind: Literal["missing", "extra", "version", "changed", "absent", "unreadable"]
    name: str
    detail: str


def find(name: str, path: Path) -> Prefix | None:
    """The prefix of that name at `path`, if there is a whole one of ours."""
    known = _marker(path)
    if known is None or known["name"] != name:
        return None
    installed = known.get("wheels")
    return Prefix(
        name=name,
        path=path,
        lock_sha256=known["lock_sha256"],
        wheels=installed if isinstance(installed, dict) else None,
    )


def _marker(path: Path) -> dict[str, Any] | None:
    try:
        known = json.loads((path / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(known, dict) and all(
        isinstance(known.get(key), str) for key in ("name", "folder", "lock_sha256")
    )
    return known if whole else None


def check_place(name: str, folder: Path, path: Path) -> None:
    """Raise InUse unless `path` is free, or the prefix of this very environment (its name, and its folder under envs)."""
    if path == Path.cwd():
        raise InvalidSpec(
            "--prefix must name a folder of its own for the environment, not the one you are in."
        )
    if path.exists() and not path.is_dir():
        raise InUse(f"{path} is a file.", advice="Name a folder with --prefix.")
    known = _marker(path)
    if known is None:
        if path.exists() and any(path.iterdir()):
            raise InUse(
                f"{path} exists and is not an environment of provision.",
                advice="Name another place with --prefix.",
            )
        return
    if known["name"] != name:
        raise InUse(
            f"{path} is the environment `{known['name']}`, not `{name}`.",
            advice="Name another place with --prefix.",
        )
    if known["folder"] != str(folder) and Path(known["folder"]).exists():
        raise InUse(
            f"{path} belongs to {known['folder']}, not to {folder}.",
            advice=f"Give one of them another name or --prefix, or remove that one: provision env remove {name}.",
        )


def is_current(prefix: Prefix | None, lock: Lock) -> bool:
    """Whether nothing is to be done: made from this very lock, with an interpreter, and every locked package recorded in it."""
    if prefix is None or prefix.lock_sha256 != lock.sha256 or not prefix.python.exists():
        return False
    return not any(_package_drift(prefix, lock))


def make(
    lock: Lock,
    name: str,
    folder: Path,
    path: Path,
    where: Folders,
    progress: Progress,
    mirrors: Mirrors = NO_MIRRORS,
) -> Prefix:
    """Realize a lock at `path`, replacing what was there in one step. The caller holds the name and has checked the place.

    folder: the environment's folder under envs, by which two folders that use one name are kept apart.
    """
    building = staging_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    try:
        _fill(lock, building, path, where, progress, mirrors)
        installed = uv.fingerprints(building)
        marker = {
            "name": name,
            "folder": str(folder),
            "lock_sha256": lock.sha256,
            "wheels": installed,
        }
        (building / MARKER).write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")
        runtime_package.install(building, runtime_package.load())
        replace_directory(path)
    except KeyboardInterrupt:
        remove_leftovers_until_quiet(path, quiet_s=QUIET_S, timeout_s=PATIENCE_S)
        raise
    except OSError as error:
        raise from_system(error) from error
    finally:
        remove_leftovers(path)
    return Prefix(name=name, path=path, lock_sha256=lock.sha256, wheels=installed)


def _fill(
    lock: Lock, building: Path, final: Path, where: Folders, progress: Progress, mirrors: Mirrors
) -> None:
    conda.install_packages(
        lock.by("conda"),
        building,
        final=final,
        cache=where.packages,
        progress=progress,
        mirrors=mirrors,
    )
    locked = lock.by("pip")
    if locked:
        progress.say(f"installing {len(locked)} wheels")
        uv.install_wheels(locked, building / "bin" / "python", mirrors, warn=progress.warn)
        _name_final(building, final)


def _name_final(building: Path, final: Path) -> None:
    """uv writes the interpreter's present path into the wheels' scripts; make them name the final one, and RECORD agree."""
    old, new = os.fsencode(building), os.fsencode(final)
    for record in sorted(building.glob("lib/python*/site-packages/*.dist-info/RECORD")):
        site = record.parent.parent
        rows = list(csv.reader(record.read_text(encoding="utf-8").splitlines()))
        changed = False
        for row in rows:
            path = site / row[0]
            if not row[0].startswith("../") or not path.is_file():
                continue
            content = path.read_bytes()
            if content.startswith(b"#!") and old in content:
                content = content.replace(old, new)
                mode = path.stat().st_mode
                path.unlink()  # it may be a hard link into uv's cache
                path.write_bytes(content)
                path.chmod(mode)
                row[1:] = [runtime_package.record_hash(content), str(len(content))]
                changed = True
        if changed:
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(rows)
            record.unlink()
            record.write_text(text.getvalue(), encoding="utf-8")


def remove(prefix: Prefix) -> None:
    """Remove a prefix; it is gone for others at once."""
    remove_leftovers(prefix.path)
    prefix.path.rename(backup_path(prefix.path))
    remove_leftovers(prefix.path)


def drift(prefix: Prefix, lock: Lock, *, files: bool) -> list[Drift]:
    """How a prefix differs from its lock: packages always, and with `files` every recorded file's size and hash."""
    found = [*_package_drift(prefix, lock), *_runtime_drift(prefix)]
    if files:
        found += [*_wheel_drift(prefix), *_conda_file_drift(prefix), *_wheel_file_drift(prefix)]
    return found


def _package_drift(prefix: Prefix, lock: Lock) -> Iterator[Drift]:
    locked = {package.name: f"{package.version} {package.build}" for package in lock.by("conda")}
    yield from _compare(locked, _installed_conda(prefix))
    # Wheels that conda packages brought along (conda's own pip) have dist-info too: they are conda's.
    wheels_locked: dict[str, str] = {
        canonicalize_name(package.name): package.version for package in lock.by("pip")
    }
    installed: dict[str, str] = {
        name: version
        for name, version in _installed_wheels(prefix).items()
        if name in wheels_locked or name not in (*locked, RUNTIME)
    }
    yield from _compare(wheels_locked, installed)


def _runtime_drift(prefix: Prefix) -> Iterator[Drift]:
    """No lock names the runtime package: it is compared with the one that this provision installs."""
    expected = runtime_package.load()
    installed = runtime_package.installed(prefix.path)
    if installed is None:
        yield Drift(
            kind="missing",
            name=RUNTIME,
            detail=f"provision installs {expected.version}, not installed",
        )
    elif installed.version != expected.version:
        yield Drift(
            kind="version",
            name=RUNTIME,
            detail=f"provision installs {expected.version}, installed {installed.version}",
        )
    elif installed.sha256 != expected.sha256:
        yield Drift(
            kind="changed",
            name=RUNTIME,
            detail=f"RECORD of {installed.version} is not the one that provision installs",
        )


def _compare(locked: dict[str, str], installed: dict[str, str]) -> Iterator[Drift]:
    for name in sorted(locked.keys() | installed.keys()):
        if name not in installed:
            yield Drift(
                kind="missing", name=name, detail=f"locked {locked[name].strip()}, not installed"
            )
        elif name not in locked:
            yield Drift(
                kind="extra",
                name=name,
                detail=f"installed {installed[name].strip()}, not in the lock",
            )
        elif not _same_version(locked[name], installed[name]):
            yield Drift(
                kind="version",
                name=name,
                detail=f"locked {locked[name].strip()}, installed {installed[name].strip()}",
            )


def _same_version(locked: str, installed: str) -> bool:
    """An index names torch 2.3.1 what calls itself 2.3.1+cu121 inside; without a local version in the lock, any will do."""
    return locked == installed or ("+" not in locked and installed.partition("+")[0] == locked)


def _installed_conda(prefix: Prefix) -> dict[str, str]:
    return {
        record["name"]: f"{record['version']} {record['build']}"
        for record in _conda_records(prefix)
    }


def _conda_records(prefix: Prefix) -> Iterator[dict[str, Any]]:
    """conda-meta's records; one that cannot be read is as good as absent, so its package counts as missing."""
    for path in sorted((prefix.path / "conda-meta").glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            record = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(record, dict) and {"name", "version", "build"} <= record.keys():
                yield record


def _installed_wheels(prefix: Prefix) -> dict[str, str]:
    """By folder name alone: name-version.dist-info (PEP 376); reading 60 METADATA files would take longer than the rest."""
    names = (
        path.name.removesuffix(".dist-info")
        for path in prefix.path.glob("lib/python*/site-packages/*.dist-info")
    )
    return {canonicalize_name(name.rpartition("-")[0]): name.rpartition("-")[2] for name in names}


def _wheel_drift(prefix: Prefix) -> Iterator[Drift]:
    """Wheels that were put in since, over those of the same version that the lock names."""
    known = prefix.wheels or {}
    for folder, found in uv.fingerprints(prefix.path).items() if known else ():
        if known.get(folder, found) != found:
            name, _, version = folder.removesuffix(".dist-info").rpartition("-")
            yield Drift(
                kind="changed",
                name=name,
                detail=f"RECORD or executables of {version} are not as they were installed",
            )


def _conda_file_drift(prefix: Prefix) -> Iterator[Drift]:
    for record in _conda_records(prefix):
        for entry in record.get("paths_data", {}).get("paths", ()):
            if entry["path_type"] == "hardlink":
                expected = entry.get("sha256_in_prefix") or entry.get("sha256")
                yield from _file_drift(
                    record["name"], prefix.path / entry["_path"], expected, prefix
                )


def _wheel_file_drift(prefix: Prefix) -> Iterator[Drift]:
    for record in sorted(prefix.path.glob("lib/python*/site-packages/*.dist-info/RECORD")):
        name = record.parent.name.removesuffix(".dist-info").rpartition("-")[0]
        for row in csv.reader(record.read_text(encoding="utf-8", errors="replace").splitlines()):
            if len(row) != 3:
                yield Drift(
                    kind="unreadable", name=name, detail=os.path.relpath(record, prefix.path)
                )
                break
            algorithm, _, encoded = row[1].partition("=")
            if algorithm == "sha256":
                expected = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()
                yield from _file_drift(
                    name, Path(os.path.normpath(record.parent.parent / row[0])), expected, prefix
                )


def _file_drift(package: str, path: Path, expected: str | None, prefix: Prefix) -> Iterator[Drift]:
    shown = os.path.relpath(path, prefix.path)
    if not path.is_file():
        yield Drift(kind="absent", name=package, detail=shown)
    elif expected and sha256_of(path) != expected:
        yield Drift(kind="changed", name=package, detail=shown)


def check_whole(prefix: Prefix) -> None:
    """Raise IntegrityError if the prefix has lost its interpreter."""
    if not prefix.python.exists():
        raise IntegrityError(
            f"{prefix.path} has no bin/python.", advice=f"Run `provision env create {prefix.name}`."
        )
