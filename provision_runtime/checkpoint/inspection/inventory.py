"""What a root holds and what is removed from it.

`checkpoint list` shows every checkpoint with its size, and unfinished saves. `checkpoint prune`
removes old ones; with --dry-run it shows what that would free.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...comm.ranks import single_process
from ...dataclass import frozen
from .. import catalog, copies, disk_usage, layout, retention
from ..errors import CheckpointError, DamagedFile
from ..items import Names

if TYPE_CHECKING:
    from ..backends import Backend
    from ..manifest import Manifest

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
    step: int | None
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
    copies_bytes: int = 0


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
    copied_bytes: int = 0
    problems: Names = ()


def take_inventory(backend: Backend) -> CheckpointInventory:
    for _ in range(TRIES):
        before = catalog.committed(backend)
        inventory = _take_inventory(backend)
        if catalog.committed(backend) == before:
            break
    return inventory


def list_unfinished(backend: Backend) -> list[str]:
    return [name for name in backend.folders() if layout.parse(name) is None]


def describe_unfinished(backend: Backend, name: str) -> Unfinished:
    host, pid, state = None, None, "unknown"
    writer = layout.writer(name)
    if writer is not None:
        host, pid, state = writer.host, int(writer.number), writer.state()
    return Unfinished(
        name=name,
        step=catalog.step_of(layout.target(name)),
        host=host,
        pid=pid,
        writer=state,
        bytes=disk_usage.folder_bytes(disk_usage.usage(backend, name)),
    )


def _take_inventory(backend: Backend) -> CheckpointInventory:
    unfinished_names = list_unfinished(backend)
    names = catalog.committed(backend)
    usages = {str(name): disk_usage.usage(backend, str(name)) for name in names}
    latest_folder = catalog.latest(backend)
    newest = {name.step: name for name in names}
    rows = []
    for name in names:
        folder = str(name)
        state, problem, content = _read_manifest(backend, folder)
        if state == "committed" and newest[name.step] != name:
            state = "replaced"
        facts: dict[str, Any] = {}
        if content is not None:
            facts = {fact: getattr(content, fact) for fact in MANIFEST_FACTS}
            facts.update(tensors=len(content.tensors), objects=len(content.objects))
        row = Checkpoint(
            step=name.step,
            generation=name.generation,
            folder=folder,
            state=state,
            problem=problem,
            latest=folder == latest_folder,
            files=len(usages[folder]),
            bytes=disk_usage.folder_bytes(usages[folder]),
            **facts,
        )
        rows.append(row)
    # What vanished meanwhile is not damaged.
    present = set(backend.folders())
    checkpoints = tuple(row for row in rows if row.folder in present)
    unfinished = [
        describe_unfinished(backend, unfinished_name)
        for unfinished_name in sorted(unfinished_names)
        if unfinished_name in present
    ]
    all_usages = list(usages.values())
    all_usages += [disk_usage.usage(backend, row.name) for row in unfinished]
    second_copies = disk_usage.usage(backend, copies.FOLDER)
    return CheckpointInventory(
        root=backend.root,
        latest=next((row.step for row in checkpoints if row.latest), None),
        bytes=disk_usage.total_bytes([*all_usages, second_copies]),
        checkpoints=checkpoints,
        unfinished=tuple(unfinished),
        copies_bytes=disk_usage.folder_bytes(second_copies),
    )


def _read_manifest(backend: Backend, folder: str) -> tuple[str, str, Manifest | None]:
    """The state, the problem and the manifest."""
    try:
        return "committed", "", catalog.read_manifest(backend, folder)
    except DamagedFile as error:
        return "damaged", str(error), None
    except CheckpointError as error:  # of another version
        return "unreadable", str(error), None
    except OSError as error:
        return "unreadable", f"{backend.root}/{folder}: {error.strerror or error}", None


def clean_up(backend: Backend, keep: int, *, every: int | None, dry_run: bool) -> Cleanup:
    plan = retention.plan_pruning(backend, keep, every=every)
    folders = (*plan.removed, *plan.leftovers)
    usages = {folder: disk_usage.usage(backend, folder) for folder in folders}
    readable = catalog.intact_newest_first(backend)
    remaining = retention.remaining_folders(backend, plan.removed)
    if not dry_run:
        plan = retention.carry_out(backend, plan, single_process(), keep)
    elif remaining:
        lacking = copies.missing(backend, remaining, keep == 1)[0].values()
        plan = replace(plan, copied_bytes=sum(content.entry.size for content in lacking))
    return Cleanup(
        root=backend.root,
        dry_run=dry_run,
        remaining=tuple(sorted(set(readable).difference(plan.removed))),
        removed=plan.removed,
        unfinished=plan.leftovers,
        left=tuple(describe_unfinished(backend, name) for name in plan.unknown),
        unreadable=plan.unreadable,
        freed_bytes=disk_usage.freed_bytes(usages, (*plan.removed, *plan.leftovers)),
        copied_bytes=plan.copied_bytes,
        problems=plan.problems,
    )
