"""Lock -> prefix: conda packages linked by py-rattler, wheels installed by uv, every file
checked against its hash.

A prefix is built in a staging directory whose files already name the final path, and one rename
puts it in place: a killed build leaves the old environment, or nothing if there was none.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path, PurePosixPath
from typing import Any

from provision.adapters import conda, uv
from provision.adapters.installed_files import interpreter_lines, script_body
from provision.core.atomic import (
    backup_path,
    remove_leftovers,
    remove_leftovers_until_quiet,
    replace_directory,
    staging_path,
)
from provision.core.errors import IntegrityError, InUse, InvalidSpec, from_system
from provision.core.json_text import parse_json
from provision.core.mirrors import NO_MIRRORS, Mirrors
from provision.core.paths import Folders
from provision.core.types import Lock, Prefix, Progress
from provision.environment import runtime_package
from provision.environment.drift import find_package_drift

# Not *.json: conda, mamba and rattler read every *.json in conda-meta as the record of a package.
MARKER = Path("conda-meta") / "provision.state"
EARLIER_MARKER = Path("conda-meta") / "provision.json"
# PEP 668: pip and uv refuse to change an environment that has this file next to its libraries.
EXTERNALLY_MANAGED = """\
[externally-managed]
Error=provision manages this environment: a package that pip adds here is lost when the
 environment is rebuilt. Add it to the environment instead:
 .
 provision build {name} --pip PACKAGE --relock
"""
# After Ctrl-C rattler's threads may go on linking for a moment (for seconds on a busy machine);
# those files must be removed too.
QUIET_S = 1.0
QUIET_TIMEOUT_S = 20.0
SHOWN_DRIFTS = 5
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find(name: str, path: Path) -> Prefix | None:
    """The prefix of that name at `path`, if provision completed one there."""
    marker = _read_marker(path)
    if marker is None or marker["name"] != name:
        return None
    wheels = marker.get("wheels")
    return Prefix(
        name=name,
        path=path,
        lock_sha256=marker["lock_sha256"],
        wheels=wheels if isinstance(wheels, dict) else None,
    )


def _read_marker(path: Path) -> dict[str, Any] | None:
    file = path / MARKER
    if not file.exists():
        file = path / EARLIER_MARKER
    try:
        marker = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(marker, dict):
        return None
    for key in ("name", "folder", "lock_sha256"):
        if not isinstance(marker.get(key), str):
            return None
    return marker


def rename_earlier_marker(path: Path) -> None:
    """Give the marker of a prefix of an earlier provision its present name, so that conda can read
    the prefix."""
    if not (path / MARKER).exists() and (path / EARLIER_MARKER).exists():
        (path / EARLIER_MARKER).rename(path / MARKER)


def check_location(name: str, folder: Path, path: Path) -> None:
    """Raise InUse unless `path` is free or holds the prefix of this environment, recognized by its
    name and its folder under envs.
    """
    if path == Path.cwd():
        raise InvalidSpec(
            "--prefix must name a separate folder for the environment, not the current folder."
        )
    if path.exists() and not path.is_dir():
        raise InUse(f"{path} is a file.", advice="Name a folder with --prefix.")
    marker = _read_marker(path)
    if marker is None:
        if path.exists() and any(path.iterdir()):
            raise InUse(
                f"{path} exists and is not an environment of provision.",
                advice="Name another folder with --prefix.",
            )
        return
    if marker["name"] != name:
        raise InUse(
            f"{path} is the environment `{marker['name']}`, not `{name}`.",
            advice="Name another folder with --prefix.",
        )
    if marker["folder"] != str(folder) and Path(marker["folder"]).exists():
        raise InUse(
            f"{path} belongs to {marker['folder']}, not to {folder}.",
            advice="Give one of the two another name or --prefix, or remove the existing one: "
            f"provision env remove {name}.",
        )


def create(
    lock: Lock,
    name: str,
    folder: Path,
    path: Path,
    folders: Folders,
    progress: Progress,
    mirrors: Mirrors = NO_MIRRORS,
) -> Prefix:
    """Install a lock at `path`, replacing an earlier prefix in one step.

    The caller holds the environment's lock and has checked the location. folder: the
    environment's folder under envs, which tells two environments of the same name apart.
    """
    staging = staging_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    try:
        install_packages(lock, staging, path, folders, progress, mirrors)
        _check_complete(lock, name, staging)
        fingerprints = complete(lock, name, folder, staging)
        replace_directory(path)
    except KeyboardInterrupt:
        remove_leftovers_until_quiet(path, quiet_s=QUIET_S, timeout_s=QUIET_TIMEOUT_S)
        raise
    except OSError as error:
        raise from_system(error) from error
    finally:
        remove_leftovers(path)
    return Prefix(name=name, path=path, lock_sha256=lock.sha256, wheels=fingerprints)


def install_packages(
    lock: Lock,
    staging: Path,
    path: Path,
    folders: Folders,
    progress: Progress,
    mirrors: Mirrors,
) -> None:
    """Install the packages of a lock into `staging`, which is empty or does not exist, with the
    final path inside.
    """
    conda.install_packages(
        lock.by("conda"),
        staging,
        final=path,
        cache=folders.packages,
        progress=progress,
        mirrors=mirrors,
    )
    wheels = lock.by("pip")
    if wheels:
        progress.say(f"installing {len(wheels)} wheels")
        uv.install_wheels(wheels, staging / "bin" / "python", mirrors, warn=progress.warn)
        _rewrite_scripts(staging, path)


def complete(
    lock: Lock, name: str, folder: Path | PurePosixPath, staging: Path, **fields: str
) -> dict[str, str]:
    """Add what makes installed packages a prefix of ours: the marker, the runtime package, and the
    file that stops pip. Returns the wheels' fingerprints. fields: more of the marker."""
    fingerprints = uv.fingerprints(staging)
    marker = {
        "name": name,
        "folder": str(folder),
        "lock_sha256": lock.sha256,
        "wheels": fingerprints,
        **fields,
    }
    (staging / MARKER).write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")
    runtime_package.install(staging, runtime_package.load())
    _mark_as_managed(staging, name)
    _write_activation(staging)
    return fingerprints


def _check_complete(lock: Lock, name: str, staging: Path) -> None:
    """Raise IntegrityError unless exactly the locked packages were installed."""
    installed = Prefix(name=name, path=staging, lock_sha256=lock.sha256)
    drifts = find_package_drift(installed, lock)
    if drifts:
        rows = [f"{drift.name}: {drift.detail}" for drift in drifts]
        raise IntegrityError(
            f"What was installed is not what {lock.path} locks: {'; '.join(rows[:SHOWN_DRIFTS])}"
            + (f"; and {len(rows) - SHOWN_DRIFTS} more." if len(rows) > SHOWN_DRIFTS else "."),
            advice="Nothing was changed. Run the same command with -v, and report it with what it "
            "prints.",
        )


def _write_activation(staging: Path) -> None:
    """What `conda activate PREFIX` sets."""
    state = {"version": 1, "env_vars": {"PYTHONNOUSERSITE": "1"}}
    (staging / "conda-meta" / "state").write_text(json.dumps(state) + "\n", encoding="utf-8")
    # uv marks what it installs into as a cache, and backup tools skip caches.
    (staging / "CACHEDIR.TAG").unlink(missing_ok=True)


def _mark_as_managed(staging: Path, name: str) -> None:
    for library in staging.glob("lib/python3*"):
        file = library / "EXTERNALLY-MANAGED"
        file.unlink(missing_ok=True)  # it may be a hard link into the package cache
        file.write_text(EXTERNALLY_MANAGED.format(name=name), encoding="utf-8")


def _rewrite_scripts(staging: Path, path: Path) -> None:
    """Put the final path into the wheels' scripts, and their new hashes into RECORD.

    uv writes the path of the staging directory into the scripts.
    """
    for record in sorted(staging.glob("lib/python*/site-packages/*.dist-info/RECORD")):
        rows = list(csv.reader(record.read_text(encoding="utf-8").splitlines()))
        has_changed = False
        for row in rows:
            if not row[0].startswith("../"):
                continue
            script = record.parent.parent / row[0]
            content = _rewrite_script(script, os.fsencode(staging), os.fsencode(path))
            if content is not None:
                row[1:] = [runtime_package.record_hash(content), str(len(content))]
                has_changed = True
        if has_changed:
            runtime_package.write_record(record, rows)


def _rewrite_script(script: Path, old: bytes, new: bytes) -> bytes | None:
    """Replace one path by another in a script; returns its new content, or None if unchanged."""
    if not script.is_file():
        return None
    content = script.read_bytes()
    if not content.startswith(b"#!") or old not in content:
        return None
    content = content.replace(old, new)
    final = Path(os.fsdecode(new))
    body = script_body(content, final)
    if body is not None:  # the staging path may have been too long for one line
        content = interpreter_lines(final / "bin" / "python") + body
    mode = script.stat().st_mode
    script.unlink()  # it may be a hard link into uv's cache
    script.write_bytes(content)
    script.chmod(mode)
    return content


def remove(prefix: Prefix) -> None:
    """Remove a prefix. Its name disappears at once, before its files are deleted."""
    remove_leftovers(prefix.path)
    prefix.path.rename(backup_path(prefix.path))
    remove_leftovers(prefix.path)


def require_interpreter(prefix: Prefix) -> None:
    """Raise IntegrityError if the prefix has lost its interpreter."""
    if not prefix.python.exists():
        raise IntegrityError(
            f"{prefix.path} has no bin/python.", advice=f"Run `provision env create {prefix.name}`."
        )


def activation_variables(prefix: Prefix) -> dict[str, str]:
    """The variables that a shell's activation would set, for programs started without a shell.

    PYTHONNOUSERSITE keeps packages of ~/.local out (conda/conda#7173). PYTHONPATH and
    LD_LIBRARY_PATH are emptied: either can put other builds of torch's libraries first
    (pytorch/pytorch#80637).
    """
    return {
        "CONDA_PREFIX": str(prefix.path),
        "CONDA_DEFAULT_ENV": prefix.name,
        "PATH": f"{prefix.path / 'bin'}:{SYSTEM_PATH}",
        "PYTHONNOUSERSITE": "1",
        "PYTHONPATH": "",
        "LD_LIBRARY_PATH": "",
        "PROVISION_LOCK_HASH": prefix.lock_sha256,
    }
