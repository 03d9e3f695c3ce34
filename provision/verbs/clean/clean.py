"""`provision clean`: what no environment needs, and what can be downloaded again.

Removes only what this user's provision made: folders of its own below the data and cache folders,
temporary directories of this user that no process has locked, and images that its own record says
it loaded. The caches of uv and of other tools are theirs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from provision.cli.records import RUNS
from provision.core import disk_usage, prefix_registry, tempdirs
from provision.core.atomic import backup_path, remove_tree, staging_path
from provision.core.dataclass import frozen
from provision.core.disk_usage import DiskUsage
from provision.core.errors import InUse
from provision.core.file_locks import environment_lock, lock_files, open_lock_file, try_lock
from provision.core.paths import LOCK, Folders
from provision.core.platforms import image_folders
from provision.core.project import described_names
from provision.environment import kernel as kernels
from provision.environment import marker
from provision.environment import prefix as prefixes
from provision.image.oci_layout import VERSION_FILE
from provision.verbs.clean.kinds import KINDS, Kind
from provision.workflow.change_journal import is_unfinished
from provision.workflow.context import Context, reported_steps
from provision.workflow.installed import remove_image

REPODATA = "linux-64/repodata.json"
RECORD_SUFFIX = ".engine.json"  # see image/engine_record.py


@frozen
class Removable:
    """Something that nothing needs. name: of the environment that it belongs to, if any."""

    kind: Kind
    path: Path
    usage: DiskUsage
    name: str = ""


def removable(context: Context, kinds: Sequence[str] = ()) -> list[Removable]:
    """What `clean` removes. kinds: only these; empty for all."""
    items: list[Removable] = []
    for kind, paths in _candidates(context).items():
        if kinds and kind not in kinds:
            continue
        for name, path in paths:
            items.append(Removable(kind=kind, path=path, usage=disk_usage.measure(path), name=name))
    return items


def clean(context: Context, items: Sequence[Removable]) -> list[Removable]:
    """Remove these; returns what was removed. What is in use meanwhile stays, with a warning."""
    removed = []
    with (
        reported_steps(context.progress) as steps,
        context.progress.meter("removing", len(items)) as meter,
    ):
        for item in items:
            try:
                with _unused(context, item):
                    steps.append(f"removed {item.path} in part")
                    _remove(context, item)
            except InUse as error:
                context.progress.warn(f"{item.path} stays: {error.message}")
            else:
                if os.path.lexists(item.path):
                    context.progress.warn(f"{item.path} stays: it cannot be removed wholly")
                else:
                    removed.append(item)
                    steps[-1] = f"removed {item.path}"
            meter.advance(1)
    return removed


@contextmanager
def _unused(context: Context, item: Removable) -> Iterator[None]:
    """Hold what a build would need. Raises InUse if another process is working there, and for a
    link: what it names may be anybody's."""
    if item.path.is_symlink():
        raise InUse(f"it is a link to {item.path.resolve()}")
    if item.kind == "cache":
        _refuse_while_building(context)
    if not item.name:
        yield
        return
    folders = _folders_of(context.folders, item)
    with environment_lock(folders, item.name, context.progress, wait=False):
        yield


def _folders_of(folders: Folders, item: Removable) -> Folders:
    """Those of the project that it belongs to."""
    for project in prefix_registry.all_projects(folders):
        if item.path.is_relative_to(project.project_data):
            return project
        if prefix_registry.list_prefixes(project).get(item.name) == item.path:
            return project
    return folders


def _refuse_while_building(context: Context) -> None:
    """Raise InUse if another process works on an environment: it may be reading a cache."""
    for path in lock_files(context.folders):
        descriptor = open_lock_file(path)
        try:
            if try_lock(descriptor) == "busy":
                raise InUse(f"another process is working on {path.name}")
        finally:
            os.close(descriptor)


def _remove(context: Context, item: Removable) -> None:
    if item.kind == "image":
        remove_image(item.path)
    elif item.kind == "environment":
        folders = _folders_of(context.folders, item)
        prefix = prefixes.find(item.name, item.path)
        if prefix is not None:
            kernels.remove_kernel_of(prefix)
            prefixes.remove(prefix.path)
        prefix_registry.forget_prefix(folders, item.name)
        remove_tree(folders.passport(item.name))
    else:
        shutil.rmtree(item.path, ignore_errors=True)


def _candidates(context: Context) -> dict[Kind, list[tuple[str, Path]]]:
    """Environment's name (or "") and path of everything that can go, by kind."""
    folders = context.folders
    caches = (
        folders.packages,
        folders.byte_code,
        folders.pulled,
        folders.unchanged,
        folders.checked,
        folders.cache / RUNS,
        folders.index_facts,
    )
    kernels_without_prefix = []
    for kernel in kernels.list_kernels():
        if not kernel.prefix.exists():
            kernels_without_prefix.append((kernel.name, kernel.path))
    candidates: dict[Kind, list[tuple[str, Path]]] = {kind: [] for kind in KINDS}
    candidates["cache"] = [("", path) for path in caches if path.exists()]
    candidates["temporary"] = [("", path) for path in tempdirs.list_abandoned()]
    candidates["kernel"] = kernels_without_prefix
    candidates["channel"] = _unused_channels(folders)
    for project in prefix_registry.all_projects(folders):
        for kind, paths in _products(project).items():
            candidates[kind] += paths
    return candidates


def _products(folders: Folders) -> dict[Kind, list[tuple[str, Path]]]:
    """The same of one project."""
    abandoned = _abandoned_environments(folders)
    used = set(prefix_registry.list_prefixes(folders)) - set(abandoned)
    used.update(described_names(folders.envs))
    used_images = {folder for name in used for folder in image_folders(name)}
    unused_images = {
        name: folders.images / name for name in _image_names(folders.images) - used_images
    }
    return {
        # What a killed change left is the way back, which the next command in its project takes.
        "unfinished": [
            (name, path)
            for name, path in _unfinished(folders.prefixes)
            if not is_unfinished(folders, name)
        ],
        "environment": sorted(abandoned.items()),
        "image": [
            *sorted(unused_images.items()),
            *_unused_folders(folders.packed, used_images, f"*/{VERSION_FILE}"),
        ],
        "pack": _unused_folders(folders.packs, used, "*-????????????.json"),
        "smoke": _unused_folders(folders.project_data / "smoke", used, "*/**/report.json"),
    }


def _unused_channels(folders: Folders) -> list[tuple[str, Path]]:
    """Channels with this machine's Python that no lock of an environment names.

    None if the envs folder of a project is missing: a lock there may name one.
    """
    locks: set[Path] = set()
    for project in prefix_registry.all_projects(folders):
        if not project.envs.is_dir():
            return []
        locks.update(project.envs.glob(f"*/{LOCK}"))
        abandoned = _abandoned_environments(project)
        for name, path in prefix_registry.list_prefixes(project).items():
            installed = marker.read(path)
            if installed is not None and name not in abandoned:
                locks.add(Path(installed.folder) / LOCK)
    texts = [lock.read_text(encoding="utf-8", errors="replace") for lock in locks if lock.exists()]
    channels = sorted(folders.channels.glob(f"py*/{REPODATA}"))
    paths = [channel.parents[1] for channel in channels]
    return [("", path) for path in paths if not any(f"{path}/" in text for text in texts)]


def _abandoned_environments(folders: Folders) -> dict[str, Path]:
    """Prefixes whose folder in envs was deleted.

    Not if the envs folder itself is missing: it may be on a disk that is not mounted now.
    """
    abandoned = {}
    for name, path in prefix_registry.list_prefixes(folders).items():
        described = marker.read(path)
        if described is None or described.name != name:
            continue
        folder = Path(described.folder)
        if folder.parent.is_dir() and not folder.exists():
            abandoned[name] = path
    return abandoned


def _unfinished(folder: Path) -> list[tuple[str, Path]]:
    unfinished = []
    for path in sorted(folder.glob(".*")):
        for pattern in (staging_path, backup_path):
            prefix, suffix = pattern(folder / "*").name.split("*")
            if path.name.startswith(prefix) and path.name.endswith(suffix):
                unfinished.append((path.name[len(prefix) : -len(suffix)], path))
    return unfinished


def _image_names(folder: Path) -> set[str]:
    """The environments that have a layout, or a record of images in the engine."""
    names = {path.parent.name for path in folder.glob(f"*/{VERSION_FILE}")}
    for record in folder.glob(f".*{RECORD_SUFFIX}"):
        names.add(record.name.removeprefix(".").removesuffix(RECORD_SUFFIX))
    return names


def _unused_folders(folder: Path, used: set[str], content: str) -> list[tuple[str, Path]]:
    """The folders of environments that are not used.

    content: what ours have in them. PROVISION_DATA may name a folder in which there is more.
    """
    unused = []
    for path in sorted(folder.glob("*")):
        if path.name not in used and not path.is_symlink() and any(path.glob(content)):
            unused.append((path.name, path))
    return unused
