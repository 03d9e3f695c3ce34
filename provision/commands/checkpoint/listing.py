"""`provision checkpoint list`: every checkpoint of a root with what it takes, and what writers have not finished."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from provision_runtime.checkpoint import (
    Backend,
    CheckpointError,
    catalog,
    disk_usage,
    layout,
    manifest,
)
from provision_runtime.checkpoint.disk_usage import Usage

# A list that a job changed while it was made is made again, at most so often.
TRIES = 5

State = Literal["committed", "replaced", "damaged", "other schema", "unreadable"]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A committed checkpoint, as its manifest says; its files are not read. Bytes are those of all its files; own are on the disk for
    it alone, shared are also other checkpoints' (hard links or references). state: "replaced" by a newer generation that is there too;
    where the manifest tells nothing, `problem` says why and what it would tell is None."""

    step: int
    generation: int
    folder: str
    state: State
    problem: str
    latest: bool
    sequence: int | None
    parent: str | None
    world_size: int | None
    torch: str | None
    tensors: int | None
    objects: int | None
    files: int
    bytes: int
    own_bytes: int
    shared_bytes: int


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """What a writer has not finished, or not finished removing. writer: "alive", "stopped", "gone", or "unknown" where it is no process
    that can be seen from here."""

    name: str
    step: int | None
    host: str | None
    pid: int | None
    writer: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Listing:
    """bytes: on the disk, every file counted once."""

    root: str
    latest: int | None
    bytes: int
    checkpoints: tuple[Checkpoint, ...]
    unfinished: tuple[Unfinished, ...]


def listed(backend: Backend) -> Listing:
    for _ in range(TRIES):
        before = catalog.committed(backend)
        found = _listed(backend)
        if catalog.committed(backend) == before:
            break
    return found


def unfinished(backend: Backend) -> list[str]:
    return [name for name in backend.folders() if layout.parse(name) is None]


def unfinished_row(backend: Backend, name: str) -> Unfinished:
    writer = layout.writer(name)
    made_for = layout.parse(layout.target(name) or "")
    return Unfinished(
        name=name,
        step=made_for.step if made_for else None,
        host=writer.host if writer else None,
        pid=int(writer.number) if writer else None,
        writer=writer.state() if writer else "unknown",
        bytes=disk_usage.folder_bytes(disk_usage.usage(backend, name)),
    )


def _listed(backend: Backend) -> Listing:
    open_ones = unfinished(backend)
    names = catalog.committed(backend)
    usages = {str(name): disk_usage.usage(backend, str(name)) for name in names}
    newest, own = catalog.latest(backend), disk_usage.own_bytes(usages)
    rows = [_row(backend, name, names, usages, newest, own[str(name)]) for name in names]
    present = set(backend.folders())
    checkpoints = tuple(row for row in rows if row.folder in present)
    latest = next((row.step for row in checkpoints if row.latest), None)
    left = tuple(unfinished_row(backend, name) for name in sorted(open_ones) if name in present)
    everything = [*usages.values(), *(disk_usage.usage(backend, row.name) for row in left)]
    return Listing(
        root=backend.root,
        latest=latest,
        bytes=disk_usage.total_bytes(everything),
        checkpoints=checkpoints,
        unfinished=left,
    )


def _row(
    backend: Backend,
    name: layout.Name,
    names: list[layout.Name],
    usages: dict[str, Usage],
    newest: str | None,
    own: int,
) -> Checkpoint:
    folder = str(name)
    state, problem, known = _manifest(backend, folder)
    if state == "committed" and any(
        other.step == name.step and other.generation > name.generation for other in names
    ):
        state = "replaced"
    held = disk_usage.folder_bytes(usages[folder])
    return Checkpoint(
        step=name.step,
        generation=name.generation,
        folder=folder,
        state=state,
        problem=problem,
        latest=folder == newest,
        sequence=known.sequence if known else None,
        parent=known.parent if known else None,
        world_size=known.world_size if known else None,
        torch=known.torch if known else None,
        tensors=len(known.tensors) if known else None,
        objects=len(known.objects) if known else None,
        files=len(usages[folder]),
        bytes=held,
        own_bytes=own,
        shared_bytes=held - own,
    )


def _manifest(backend: Backend, folder: str) -> tuple[State, str, manifest.Manifest | None]:
    try:
        return "committed", "", catalog.read_manifest(backend, folder)
    except errors.OtherSchema as error:
        return "other schema", str(error), None
    except CheckpointError as error:
        return "damaged", str(error), None
    except OSError as error:
        return "unreadable", f"{backend.root}/{folder}: {error.strerror or error}", None
