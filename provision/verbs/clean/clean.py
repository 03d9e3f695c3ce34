"""`provision clean`: what no environment needs, and what can be downloaded again.

Removes only what this user's provision made: folders of its own below the data and cache folders,
temporary directories of this user that no process has locked, and images that its own record says
it loaded. The caches of uv and of other tools are theirs.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from provision.cli.records import RUNS
from provision.core import disk_usage, prefix_registry, tempdirs
from provision.core.atomic import UNFINISHED, remove_tree
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
RECORD = re.compile(r"^\.(.+)\.engine\.json$")  # see image/engine_record.py
# With the environment's name, or "".
Candidate = tuple[Kind, str, Path]


@frozen
class Removable:
    """Something that nothing needs. name: of the environment that it belongs to, if any."""

    kind: Kind
    path: Path
    usage: DiskUsage
    name: str = ""


def removable(context: Context, kinds: Sequence[str] = ()) -> list[Removable]:
    """What `clean` removes. kinds: only these; empty for all."""
    candidates = sorted(
        _candidates(context.folders), key=lambda candidate: KINDS.index(candidate[0])
    )
    return [
        Removable(kind=kind, path=path, usage=disk_usage.measure(path), name=name)
        for kind, name, path in candidates
        if not kinds or kind in kinds
    ]


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
                    context.progress.warn(f"{item.path} stays: it cannot be removed completely")
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
        is_prefix = prefix_registry.list_prefixes(project).get(item.name) == item.path
        if is_prefix or item.path.is_relative_to(project.project_data):
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


def _candidates(folders: Folders) -> Iterator[Candidate]:
    """Everything that can go."""
    caches = (
        folders.packages,
        folders.byte_code,
        folders.pulled,
        folders.unchanged,
        folders.remembered,
        folders.cache / RUNS,
        folders.index_facts,
    )
    yield from (("cache", "", path) for path in caches if path.exists())
    yield from (("temporary", "", path) for path in tempdirs.list_abandoned())
    for kernel in kernels.list_kernels():
        if not kernel.prefix.exists():
            yield "kernel", kernel.name, kernel.path
    projects = prefix_registry.all_projects(folders)
    for project in projects:
        yield from _products(project)
    yield from (("channel", "", path) for path in _unused_channels(folders.channels, projects))


def _products(folders: Folders) -> Iterator[Candidate]:
    """The same of one project. PROVISION_DATA may name a folder in which there is more than what is
    ours."""
    for path in sorted(folders.prefixes.glob(".*")):
        match = UNFINISHED.fullmatch(path.name)
        # What a killed change left is the way back, which the next command in its project takes.
        if match and not is_unfinished(folders, match[1]):
            yield "unfinished", match[1], path
    used = set(described_names(folders.envs))
    for name, path in prefix_registry.list_prefixes(folders).items():
        if _is_abandoned(name, path):
            yield "environment", name, path
        else:
            used.add(name)
    images = {folder for name in used for folder in image_folders(name)}
    unused: dict[Path, tuple[Kind, str]] = {}
    contents: tuple[tuple[Kind, Path, str, set[str]], ...] = (
        ("image", folders.images, f"*/{VERSION_FILE}", images),
        ("image", folders.images, ".*.engine.json", images),
        ("image", folders.packed, f"*/{VERSION_FILE}", images),
        ("pack", folders.packs, "*/*-????????????.json", used),
        ("smoke", folders.smoke(""), "*/*/**/report.json", used),
    )
    for kind, folder, content, needed in contents:
        for path in sorted(folder.glob(content)):
            name = RECORD.sub(r"\1", path.relative_to(folder).parts[0])
            if name not in needed and not (folder / name).is_symlink():
                unused[folder / name] = kind, name
    yield from ((kind, name, path) for path, (kind, name) in unused.items())


def _unused_channels(channels: Path, projects: Iterable[Folders]) -> Iterator[Path]:
    """Channels with this machine's Python that no lock of an environment names.

    None if the envs folder of a project is missing: a lock there may name one.
    """
    locks: set[Path] = set()
    for project in projects:
        if not project.envs.is_dir():
            return
        locks.update(project.envs.glob(f"*/{LOCK}"))
        for path in prefix_registry.list_prefixes(project).values():
            installed = marker.read(path)
            if installed is not None:
                locks.add(Path(installed.folder) / LOCK)
    texts = [lock.read_text(encoding="utf-8", errors="replace") for lock in locks if lock.exists()]
    for repodata in sorted(channels.glob(f"py*/{REPODATA}")):
        if not any(f"{repodata.parents[1]}/" in text for text in texts):
            yield repodata.parents[1]


def _is_abandoned(name: str, path: Path) -> bool:
    """Whether the folder in envs of a prefix was deleted.

    Not if the envs folder itself is missing: it may be on a disk that is not mounted now.
    """
    described = marker.read(path)
    if described is None or described.name != name:
        return False
    folder = Path(described.folder)
    return folder.parent.is_dir() and not folder.exists()
