"""Removing old checkpoints: never the latest, never what a later one still needs, and not before
what stays has its second copies (copies.py).

Works without torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..comm import collective
from ..comm.ranks import Ranks, single_process
from ..dataclass import frozen
from . import catalog, copies, disk_usage, layout
from .items import Names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .storage import Storage


@frozen
class Pruned:
    """What `prune` removed, or would remove: names of folders below the root.

    Attributes:
        removed: Committed checkpoints.
        leftovers: Unfinished folders of dead writers, removed too.
        unknown: Unfinished folders that stay, since their writer may be alive, on another host or in
            another container.
        unreadable: Committed checkpoints that stay, since their age is unknown: their manifest cannot
            be read.
        problems: A sentence for each folder that could not be removed, and one if second copies could
            not be written.
        freed_bytes: Bytes of files whose last name goes.
        copied_bytes: Bytes of second copies that were written.
        lacks_copies: Whether second copies could not be written.
    """

    removed: Names
    leftovers: Names
    unknown: Names
    unreadable: Names = ()
    problems: Names = ()
    freed_bytes: int = 0
    copied_bytes: int = 0
    lacks_copies: bool = False


def prune(
    storage: Storage, keep: int, *, every: int | None = None, dry_run: bool = False
) -> Pruned:
    """Keeps the last `keep` committed steps, the multiples of `every`, and what `latest` names.

    Steps that cannot be read do not count. The order of commits decides, so a run that resumed from
    an earlier step keeps its own checkpoints. Raises ValueError if `keep` is less than 1.
    """
    pruned = plan_pruning(storage, keep, every=every)
    usages = {
        name: disk_usage.usage(storage, name) for name in (*pruned.removed, *pruned.leftovers)
    }
    remaining = _remaining(storage, pruned.removed)
    if not dry_run:
        pruned = carry_out(storage, pruned, single_process(), keep)
    elif remaining:
        lacking, _ = copies.missing(storage, remaining, keep == 1)
        size = sum(content.entry.size for content in lacking.values())
        pruned = replace(pruned, copied_bytes=size)
    gone = (*pruned.removed, *pruned.leftovers)
    return replace(pruned, freed_bytes=disk_usage.freed_bytes(usages, gone))


def plan_pruning(
    storage: Storage,
    keep: int | None,
    *,
    every: int | None = None,
    protected: Sequence[int] = (),
) -> Pruned:
    """What prune would remove. keep: None keeps all. protected: steps that stay too."""
    if keep is not None and keep < 1:
        raise ValueError(f"keep={keep}: keep at least one checkpoint")
    names = [name for name in storage.folders() if layout.parse(name) is None]
    dead = [name for name in names if layout.is_leftover(name)]
    unknown = [name for name in names if name not in dead]
    removed, unreadable = _select(storage, keep, every, protected) if keep else ([], [])
    return Pruned(tuple(removed), tuple(dead), tuple(unknown), tuple(unreadable))


def carry_out(
    storage: Storage, plan: Pruned, ranks: Ranks, keep: int | None, with_copies: bool = True
) -> Pruned:
    """What was done; what failed is in `problems`. All ranks call it with the same plan; rank 0
    removes.

    The ranks share the work of copying. If that fails, the newest of the removed checkpoints stays
    in place of the copies. keep: if all stay (None), only the newest two get copies, since looking at
    all would take ever longer.
    """
    removed, problems, copied, lacks_copies = list(plan.removed), [], 0, False

    def copy() -> int:
        remaining = _remaining(storage, plan.removed)[: 2 if keep is None else None]
        if not remaining:
            return 0
        return copies.make(storage, remaining, keep == 1, ranks.rank, ranks.world_size)

    if with_copies:
        copying = collective.run_with_heartbeat("checkpoint/copy", ranks, copy)
        try:
            copied = sum(collective.run_on_all("checkpoint/copied", ranks, copying.result))
        except collective.RankFailed as error:
            lacks_copies = True
            problem = f"no second copies of all that stays could be written: {error}"
            names = [name for name in map(layout.parse, removed) if name]
            newest = next(iter(catalog.intact_newest_first(storage, names)), None)
            if newest:
                removed.remove(newest)
                problem += f"; {newest} stays in their place"
            problems.append(problem)
    failed = set()
    for folder in (*removed, *plan.leftovers) if ranks.rank == 0 else ():
        try:
            storage.remove(folder)
        except OSError as error:
            failed.add(folder)
            path = f" ({error.filename})" if error.filename else ""
            problems.append(f"{folder} was not removed: {error.strerror or error}{path}")
    return replace(
        plan,
        removed=tuple(folder for folder in removed if folder not in failed),
        leftovers=tuple(name for name in plan.leftovers if name not in failed),
        problems=tuple(problems),
        copied_bytes=copied,
        lacks_copies=lacks_copies,
    )


def _remaining(storage: Storage, removed: Sequence[str]) -> list[str]:
    """What stays, the newest first, without links: where these lead may be elsewhere tomorrow."""
    left_out = {*removed, *storage.linked()}
    return [folder for folder in catalog.intact_newest_first(storage) if folder not in left_out]


def _select(
    storage: Storage, keep: int, every: int | None, protected_steps: Sequence[int]
) -> tuple[list[str], list[str]]:
    """The checkpoints to remove, in order of steps; and those whose manifest cannot be read.

    The latter stay unless every retained checkpoint is of a later step. What an operator linked or
    mounted stays and does not count; what links lead to stays too. A save may run meanwhile:
    what it commits after the listing is not in it, and what `latest` is about to name was committed
    last.
    """
    present = catalog.committed(storage)
    # The last commit first.
    by_age = catalog.intact_newest_first(storage, present)
    linked = storage.linked()
    protected = {catalog.latest(storage), *by_age[:1], *linked, *linked.values()}
    last_of_step: dict[int, str] = {}
    for folder in by_age:
        if folder not in linked:
            last_of_step.setdefault(catalog.step_of(folder) or 0, folder)
    retained = {
        step: folder
        for age, (step, folder) in enumerate(last_of_step.items())
        if age < keep or step in protected_steps or (every and step % every == 0)
    }
    first_step = min(retained, default=0)
    unreadable = []
    removed = []
    for name in present:
        folder = str(name)
        is_unreadable = folder not in by_age
        if is_unreadable and (name.step >= first_step or folder in protected):
            unreadable.append(folder)
        elif folder not in retained.values() and folder not in protected:
            removed.append(folder)
    return removed, unreadable
