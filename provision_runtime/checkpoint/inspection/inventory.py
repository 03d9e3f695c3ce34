"""What a root holds and what is removed from it.

`checkpoint list` shows every checkpoint with its size, and unfinished saves. `checkpoint prune`
removes old ones; with --dry-run it shows what that would free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...dataclass import frozen
from .. import catalog, copies, disk_usage, layout, retention
from ..errors import CheckpointError, DamagedFile
from ..items import Names

if TYPE_CHECKING:
    from ..storage import Storage

# How often to list again when a job changes the root meanwhile.
TRIES = 5
MANIFEST_FACTS = ("sequence", "parent", "world_size", "torch")


@frozen
class Checkpoint:
    """A committed checkpoint, from its manifest; its files are not read.

    bytes: of all its files. state: "committed"; "replaced" by a newer generation that exists too;
    "damaged", or "unreadable" (also of another version), if its manifest cannot be used: `problem` is
    then the reason, and the fields from the manifest are None.
    """

    step: int
    generation: int
    folder: str
    state: str
    problem: str
    latest: bool
    files: int
    bytes: int
    sequence: int | None = None
    parent: str | None = None
    world_size: int | None = None
    torch: str | None = None
    tensors: int | None = None
    objects: int | None = None


@frozen
class Unfinished:
    """What a writer has not finished writing or removing.

    writer: "alive", "stopped", "gone", or "unknown" for a process of another host or container.
    """

    name: str
    host: str | None
    pid: int | None
    writer: str
    bytes: int


@frozen
class CheckpointInventory:
    """bytes: on the disk, every file counted once. copies_bytes: those of second copies among them."""

    root: str
    latest: int | None
    bytes: int
    checkpoints: tuple[Checkpoint, ...]
    unfinished: tuple[Unfinished, ...]
    copies_bytes: int


@frozen
class Cleanup:
    """What was removed; with dry_run, what would be.

    removed: folders of checkpoints. unfinished: removed folders that dead writers left. left: unfinished
    folders whose writer may be alive. unreadable: checkpoints that stay and do not count, since their
    manifest cannot be read. freed_bytes: of files whose last name goes. copied_bytes: of second copies
    that were written. problems: a sentence for each folder that could not be removed, and for second
    copies that could not be written.
    """

    root: str
    dry_run: bool
    remaining: Names
    removed: Names
    unfinished: Names
    left: tuple[Unfinished, ...]
    unreadable: Names
    freed_bytes: int
    copied_bytes: int
    problems: Names = ()


def take_inventory(storage: Storage) -> CheckpointInventory:
    for _ in range(TRIES):
        folders = sorted(storage.folders())
        usages = {folder: disk_usage.usage(storage, folder) for folder in folders}
        names = sorted(name for name in map(layout.parse, folders) if name)
        newest = {name.step: name for name in names}
        latest_folder = catalog.latest(storage)
        rows = [
            _checkpoint(
                storage,
                name,
                usages[str(name)],
                is_latest=str(name) == latest_folder,
                is_newest=newest[name.step] == name,
            )
            for name in names
        ]
        unfinished = [_unfinished(storage, name) for name in folders if not layout.parse(name)]
        # What vanished meanwhile is not damaged.
        present = sorted(storage.folders())
        if present == folders:
            break
    checkpoints = tuple(row for row in rows if row.folder in present)
    second_copies = disk_usage.usage(storage, copies.FOLDER)
    return CheckpointInventory(
        root=storage.root,
        latest=next((row.step for row in checkpoints if row.latest), None),
        bytes=disk_usage.total_bytes([*usages.values(), second_copies]),
        checkpoints=checkpoints,
        unfinished=tuple(row for row in unfinished if row.name in present),
        copies_bytes=disk_usage.total_bytes([second_copies]),
    )


def _unfinished(storage: Storage, name: str) -> Unfinished:
    host, pid, state = None, None, "unknown"
    writer = layout.writer(name)
    if writer is not None:
        host, pid, state = writer.host, int(writer.number), writer.state()
    size = disk_usage.total_bytes([disk_usage.usage(storage, name)])
    return Unfinished(name, host, pid, state, size)


def _checkpoint(
    storage: Storage,
    name: layout.CheckpointName,
    files: disk_usage.Usage,
    *,
    is_latest: bool,
    is_newest: bool,
) -> Checkpoint:
    folder, problem = str(name), ""
    state = "committed" if is_newest else "replaced"
    facts: dict[str, Any] = {}
    try:
        content = catalog.read_manifest(storage, folder)
        facts = {fact: getattr(content, fact) for fact in MANIFEST_FACTS}
        facts.update(tensors=len(content.tensors), objects=len(content.objects))
    except CheckpointError as error:
        state = "damaged" if isinstance(error, DamagedFile) else "unreadable"  # of another version
        problem = str(error)
    except OSError as error:
        state, problem = "unreadable", f"{storage.root}/{folder}: {error.strerror or error}"
    return Checkpoint(
        step=name.step,
        generation=name.generation,
        folder=folder,
        state=state,
        problem=problem,
        latest=is_latest,
        files=len(files),
        bytes=disk_usage.total_bytes([files]),
        **facts,
    )


def clean_up(storage: Storage, keep: int, *, every: int | None, dry_run: bool) -> Cleanup:
    pruned = retention.prune(storage, keep, every=every, dry_run=dry_run)
    readable = catalog.intact_newest_first(storage)
    return Cleanup(
        root=storage.root,
        dry_run=dry_run,
        remaining=tuple(sorted(set(readable).difference(pruned.removed))),
        removed=pruned.removed,
        unfinished=pruned.leftovers,
        left=tuple(_unfinished(storage, name) for name in pruned.unknown),
        unreadable=pruned.unreadable,
        freed_bytes=pruned.freed_bytes,
        copied_bytes=pruned.copied_bytes,
        problems=pruned.problems,
    )
