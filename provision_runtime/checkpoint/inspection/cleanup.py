"""`checkpoint prune`: which checkpoints to remove, what that frees, and their removal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import disk_usage, layout, retention
from .inventory import Unfinished, describe_unfinished, list_unfinished
from .root import IN_USE, INVALID, InspectionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..backends import Backend


@dataclass(frozen=True)
class Cleanup:
    """What was removed; with dry_run, what would be.

    removed: folders of checkpoints. unfinished: names of what dead writers left, and of what was
    named. left: unfinished ones whose writer may be alive. unreadable: checkpoints that stay and do
    not count, since their manifest cannot be read. freed_bytes: of files whose last name goes.
    """

    root: str
    dry_run: bool
    kept: tuple[str, ...]
    removed: tuple[str, ...]
    unfinished: tuple[str, ...]
    left: tuple[Unfinished, ...]
    unreadable: tuple[str, ...]
    freed_bytes: int


def clean_up(
    backend: Backend,
    keep: int | None,
    *,
    every: int | None,
    unfinished: Sequence[str],
    dry_run: bool,
) -> Cleanup:
    """keep: None removes no committed checkpoint. unfinished: folders to remove though their writer
    cannot be seen.

    Raises InspectionError for a folder that does not exist, or whose writer is alive.
    """
    _check_unfinished(backend, unfinished)
    plan = retention.plan_pruning(backend, keep, every=every, unfinished=unfinished)
    removed = (*plan.removed, *plan.leftovers)
    folders = {*backend.folders(), *removed}
    usages = {folder: disk_usage.usage(backend, folder) for folder in folders}
    kept = []
    for folder in sorted(usages):
        if layout.parse(folder) and folder not in removed and folder not in plan.unreadable:
            kept.append(folder)
    cleanup = Cleanup(
        root=backend.root,
        dry_run=dry_run,
        kept=tuple(kept),
        removed=plan.removed,
        unfinished=plan.leftovers,
        left=tuple(describe_unfinished(backend, name) for name in plan.unknown),
        unreadable=plan.unreadable,
        freed_bytes=disk_usage.freed_bytes(usages, removed),
    )
    if not dry_run:
        retention.carry_out(backend, plan)
    return cleanup


def _check_unfinished(backend: Backend, names: Sequence[str]) -> None:
    present = list_unfinished(backend)
    for name in names:
        if name not in present:
            unfinished = ", ".join(sorted(present)) or "none"
            raise InspectionError(
                INVALID,
                f"{backend.root} has no unfinished folder {name}.",
                f"Unfinished folders: {unfinished}.",
            )
        row = describe_unfinished(backend, name)
        if row.writer in ("alive", "stopped"):
            raise InspectionError(
                IN_USE,
                f"{name} is being written by process {row.pid} of this host, "
                f"which is {row.writer}.",
                "End that process first.",
            )
