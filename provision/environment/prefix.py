"""Lock -> prefix: conda packages linked by py-rattler, wheels installed by uv, every file
checked against its hash.

A prefix is built in a staging directory whose files already name the final path, and one rename
puts it in place: a killed build leaves the old environment, or nothing if there was none.
"""

from __future__ import annotations

import csv
import json
import os
import stat
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from provision.adapters import conda, uv
from provision.adapters.installed_files import (
    interpreter_lines,
    record_hash,
    script_body,
    wheel_records,
    write_record,
)
from provision.core.atomic import (
    atomic_write,
    backup_path,
    remove_leftovers,
    remove_leftovers_until_quiet,
    remove_tree,
    replace_directory,
    staging_path,
)
from provision.core.container import PREFIX as IMAGE_PREFIX
from provision.core.errors import IntegrityError, InUse, InvalidSpec, NoSpace
from provision.core.mirrors import NO_MIRRORS, Mirrors
from provision.core.paths import Folders, make_private_directory, nearest_existing
from provision.core.platforms import build_platform
from provision.core.system_errors import free_space, from_system
from provision.core.types import Lock, Prefix, Progress
from provision.environment import (
    activation,
    bytecode,
    install_record,
    marker,
    prefix_change,
    runtime_package,
)
from provision.environment.drift import find_package_drift
from provision.environment.marker import MARKER as MARKER
from provision.environment.marker import Marker
from provision.environment.marker import find as find
from provision_runtime.facts import freshness

# PEP 668: pip and uv refuse to change an environment that has this file next to its libraries.
EXTERNALLY_MANAGED = """\
[externally-managed]
Error=provision manages this environment: a package that pip adds here is lost when the
 environment is rebuilt. Add it to the environment instead:
 .
 provision add {name} PACKAGE
"""
SHOWN_DRIFTS = 5


def check_location(name: str, folder: Path, path: Path) -> None:
    """Raise InUse unless `path` is free or holds the prefix of this environment, recognized by its
    name and its folder under envs.
    """
    if path == Path.cwd():
        raise InvalidSpec(
            "--prefix must name a separate folder for the environment, not the current folder."
        )
    if path.is_symlink():
        raise InUse(
            f"{path} is a link to {path.resolve()}, and an environment takes its place by a rename.",
            advice="Remove the link, or name the folder itself with --prefix.",
        )
    if path.exists() and not path.is_dir():
        raise InUse(f"{path} is a file.", advice="Name a folder with --prefix.")
    present = marker.read(path)
    owner = "not an environment of provision"
    if present is not None:
        owner = f"the environment `{present.name}` of {present.folder}"
        is_gone = not Path(present.folder).exists()
        if present.name == name and (present.folder == str(folder) or is_gone):
            return
    elif not path.exists() or not any(path.iterdir()):
        return
    raise InUse(
        f"{path} is {owner}, not `{name}` of {folder}.", advice="Name another folder with --prefix."
    )


def create(
    lock: Lock,
    name: str,
    folder: Path,
    path: Path,
    folders: Folders,
    progress: Progress,
    mirrors: Mirrors = NO_MIRRORS,
    *,
    before: Lock | None = None,
    warnings: Collection[str] = (),
    keep_replaced: bool = False,
) -> Prefix:
    """Install a lock at `path`, replacing an earlier prefix in one step.

    before: the lock of the present prefix, from which unchanged packages may be taken. warnings:
    the ids of those that were printed about its build. keep_replaced: leave the earlier prefix, and
    after an error all that was built, for `put_back`.

    The caller holds the environment's lock and has checked the location. folder: the
    environment's folder under envs, which tells two environments of the same name apart.
    """
    staging = staging_path(path)
    make_private_directory(path.parent)
    remove_leftovers(path)
    try:
        present = marker.read(path) if before else None
        change = None
        if present is not None and before is not None:
            change = prefix_change.prepare(
                present.prefix(path), before, lock, folders.byte_code, progress, mirrors
            )
        # `env list` shows size and records, and must not walk through 32,000 files per environment.
        if present is not None and change is not None:
            _check_complete(change.new, name, staging)
            records = change.records(staging)
            size = present.size - change.size + _leave_writing_to_owner(staging)
            change.write_record(staging)
        else:
            install_packages(lock, staging, path, folders, progress, mirrors)
            _check_complete(lock, name, staging)
            progress.info("compiling every module")
            byte_code = bytecode.compile_all(staging, "checked-hash", folders.byte_code, progress)
            records = tuple(sorted(freshness.package_records(str(staging))))
            _add_provision_files(name, staging)
            install_record.compile_runtime(staging, folders.byte_code)
            size = _leave_writing_to_owner(staging)
            size += install_record.write(staging, byte_code)
        new = Marker(
            name=name,
            folder=str(folder),
            lock_sha256=lock.sha256,
            spec_sha256=freshness.spec_sha256(str(folder)),
            size=size,
            records=records,
            warnings=tuple(sorted(warnings)),
        )
        marker.write(staging, new)
        if change is None:
            replace_directory(path)
        else:
            prefix_change.exchange(change)
    except KeyboardInterrupt:
        prefix_change.undo(path)
        remove_leftovers_until_quiet(path)
        raise
    except (OSError, NoSpace) as error:
        failure = error if isinstance(error, NoSpace) else from_system(error, path)
        if isinstance(failure, NoSpace):
            folders_written = {
                "the environment": path.parent,
                "conda packages": folders.packages,
                "uv's cache": uv.cache_folder(),
            }
            texts = [
                f"{free_space(nearest_existing(written))} for {content} in {written}"
                for content, written in folders_written.items()
            ]
            failure.advice += f" Free now: {'; '.join(texts)}."
        raise failure from error
    finally:
        if not keep_replaced:
            remove_leftovers(path)
    return Prefix(name=name, path=path, lock_sha256=lock.sha256)


def install_for_image(
    lock: Lock,
    staging: Path,
    prefix: Prefix,
    folders: Folders,
    progress: Progress,
    mirrors: Mirrors,
) -> None:
    """Install the packages of a lock into `staging`, as they are in an image.

    prefix: of the same lock, for this machine. The packages may be of another platform: then uv asks
    its Python which version it is, and no program of theirs is run.
    """
    python = None if lock.platform == build_platform() else prefix.python
    install_packages(lock, staging, Path(IMAGE_PREFIX), folders, progress, mirrors, python)
    _check_complete(lock, prefix.name, staging)


def install_packages(
    lock: Lock,
    staging: Path,
    path: Path,
    folders: Folders,
    progress: Progress,
    mirrors: Mirrors,
    python: Path | None = None,
) -> None:
    """Install the packages of a lock into `staging`, which is empty or does not exist, with the
    final path inside.

    python: of this machine and of the same version, for packages of another platform.
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
        progress.info(f"installing {len(wheels)} wheels")
        with progress.meter("installing wheels", 0):
            uv.install_wheels(
                wheels,
                python or staging / "bin" / "python",
                mirrors,
                target=staging if python else None,
                platform=lock.platform if python else None,
                on_line=progress.info,
            )
        _rewrite_scripts(staging, python.parent.parent if python else staging, path)


def complete(lock: Lock, name: str, final: PurePosixPath, staging: Path, *, pack: str) -> None:
    """Add what makes the packages of a pack a prefix of ours: the runtime package, the file that
    stops pip, activation scripts, and the marker."""
    _add_provision_files(name, staging)
    new = Marker(name=name, folder=str(final), lock_sha256=lock.sha256, pack=pack)
    marker.write(staging, new)


def _add_provision_files(name: str, staging: Path) -> None:
    """All but the marker."""
    runtime_package.install(staging, runtime_package.load())
    for library in staging.glob("lib/python3*"):
        file = library / "EXTERNALLY-MANAGED"
        file.unlink(missing_ok=True)  # it may be a hard link into the package cache
        file.write_text(EXTERNALLY_MANAGED.format(name=name), encoding="utf-8")
    _write_conda_state(staging)
    activation.write_scripts(staging)


def _leave_writing_to_owner(staging: Path) -> int:
    """Take from others, the group included, the permission to change the environment, which
    packages may give them. Files may be links into the caches, where nobody else should write
    either. Returns the bytes of all files."""
    size = 0
    inodes = set()
    pending = [os.fspath(staging)]
    while pending:
        folder = pending.pop()
        _take_writing(folder, os.lstat(folder).st_mode)
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif not entry.is_symlink():
                    status = entry.stat(follow_symlinks=False)
                    _take_writing(entry.path, status.st_mode)
                    if status.st_ino not in inodes:
                        inodes.add(status.st_ino)
                        size += status.st_size
    return size


def _take_writing(path: str, mode: int) -> None:
    if mode & 0o022:
        Path(path).chmod(stat.S_IMODE(mode) & ~0o022)


def _check_complete(lock: Lock, name: str, staging: Path) -> None:
    """Raise IntegrityError unless exactly the locked packages were installed."""
    drifts = find_package_drift(Prefix(name=name, path=staging, lock_sha256=lock.sha256), lock)
    if drifts:
        rows = [f"{drift.name}: {drift.detail}" for drift in drifts]
        raise IntegrityError(
            f"What was installed is not what {lock.path} locks: {'; '.join(rows[:SHOWN_DRIFTS])}"
            + (f"; and {len(rows) - SHOWN_DRIFTS} more." if len(rows) > SHOWN_DRIFTS else "."),
            advice="Nothing was changed. Run the same command with -v, and report it with what it "
            "prints.",
        )


def _write_conda_state(staging: Path) -> None:
    """What `conda activate PREFIX` sets."""
    state = {"version": 1, "env_vars": {"PYTHONNOUSERSITE": "1"}}
    atomic_write(staging / "conda-meta" / "state", json.dumps(state) + "\n")
    # uv marks what it installs into as a cache, and backup tools skip caches.
    (staging / "CACHEDIR.TAG").unlink(missing_ok=True)


def _rewrite_scripts(staging: Path, written: Path, path: Path) -> None:
    """Put the final path into the wheels' scripts, and their new hashes into RECORD.

    written: the path that uv wrote into them.
    """
    for record in wheel_records(staging):
        text = record.read_text(encoding="utf-8")
        rows = list(csv.reader(text.splitlines() if "../" in text else ()))
        has_changed = False
        for row in rows:
            if not row[0].startswith("../"):
                continue
            script = record.parent.parent / row[0]
            content = _rewrite_script(script, os.fsencode(written), os.fsencode(path))
            if content is not None:
                row[1:] = [record_hash(content), str(len(content))]
                has_changed = True
        if has_changed:
            write_record(record, rows)


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


def remove(path: Path) -> None:
    """Remove a prefix. Its name disappears at once, before its files are deleted."""
    remove_leftovers(path)
    path.rename(backup_path(path))
    remove_leftovers(path)


def put_back(path: Path, lock_sha256: str) -> None:
    """Undo a `create` that kept the prefix of this lock, wherever that is between its path and its
    backup, and remove what it built."""
    present = marker.read(path)
    is_back = present is not None and present.lock_sha256 == lock_sha256
    if not is_back and not prefix_change.undo(path):
        for copy in (backup_path(path), staging_path(path)):
            copied = marker.read(copy)
            if copied is not None and copied.lock_sha256 == lock_sha256:
                if copy == backup_path(path):
                    remove_tree(staging_path(path))
                    copy.rename(staging_path(path))
                replace_directory(path)
                break
    remove_leftovers(path)
