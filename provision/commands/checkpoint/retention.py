"""`provision checkpoint prune`: which checkpoints go, what that frees, and taking them away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from provision.commands.checkpoint.listing import Unfinished, unfinished, unfinished_row
from provision.core.errors import InUse, InvalidSpec
from provision_runtime.checkpoint import Backend, disk_usage, layout, retention


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """removed: folders of checkpoints; unfinished: names of what dead writers left, and of what was named; both went, or would go with
    dry_run. left: unfinished ones whose writer may live. unreadable: checkpoints that stay and do not count, since their manifest
    cannot be read. freed_bytes: of files whose last name goes."""

    root: str
    dry_run: bool
    kept: tuple[str, ...]
    removed: tuple[str, ...]
    unfinished: tuple[str, ...]
    left: tuple[Unfinished, ...]
    unreadable: tuple[str, ...]
    freed_bytes: int


def pruned(
    backend: Backend, keep: int | None, *, every: int | None, named: Sequence[str], dry_run: bool
) -> Pruning:
    """keep: None removes no committed checkpoint. Raises InvalidSpec for a name that is not there, and InUse where its writer lives."""
    _check_named(backend, named)
    plan = retention.plan_pruning(backend, keep, every=every, unfinished=named)
    going = (*plan.removed, *plan.leftovers)
    usages = {folder: disk_usage.usage(backend, folder) for folder in {*backend.folders(), *going}}
    kept = sorted(
        folder
        for folder in usages
        if layout.parse(folder) and folder not in going and folder not in plan.unreadable
    )
    found = Pruning(
        root=backend.root,
        dry_run=dry_run,
        kept=tuple(kept),
        removed=plan.removed,
        unfinished=plan.leftovers,
        left=tuple(unfinished_row(backend, name) for name in plan.unknown),
        unreadable=plan.unreadable,
        freed_bytes=disk_usage.freed_bytes(usages, going),
    )
    if not dry_run:
        retention.carry_out(backend, plan)
    return found


def _check_named(backend: Backend, named: Sequence[str]) -> None:
    there = unfinished(backend)
    for name in named:
        if name not in there:
            known = ", ".join(sorted(there)) or "none"
            raise InvalidSpec(
                f"{backend.root} has no unfinished folder {name}.",
                advice=f"Unfinished are: {known}.",
            )
        row = unfinished_row(backend, name)
        if row.writer in ("alive", "stopped"):
            raise InUse(
                f"{name} is being written by process {row.pid} of this host, which is {row.writer}.",
                advice="End it first.",
            )
