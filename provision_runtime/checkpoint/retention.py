"""Removing old checkpoints: never the latest, never what a later one still needs, and not before
what stays has its second copies (copies.py).

Works without torch.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from ..comm import collective
from ..comm.ranks import single_process
from ..dataclass import frozen
from . import catalog, copies, layout
from .errors import CheckpointWarning
from .items import Names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..comm.ranks import Ranks
    from .backends import Backend


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
        copied_bytes: Bytes of second copies that were written.
        lacks_copies: Whether second copies could not be written.
    """

    removed: Names
    leftovers: Names
    unknown: Names
    unreadable: Names = ()
    problems: Names = ()
    copied_bytes: int = 0
    lacks_copies: bool = False


def prune(
    backend: Backend,
    keep: int,
    *,
    every: int | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Keeps the last `keep` committed steps, the multiples of `every`, and what `latest` names.

    Steps that cannot be read do not count. The order of commits decides, so a run that resumed from
    an earlier step keeps its own checkpoints. Raises ValueError if `keep` is less than 1. Warns of
    each problem.
    """
    plan = plan_pruning(backend, keep, every=every)
    if dry_run:
        return plan
    pruned = carry_out(backend, plan, single_process(), keep)
    for problem in pruned.problems:
        warnings.warn(problem, CheckpointWarning, stacklevel=3)
    return pruned


def plan_pruning(
    backend: Backend,
    keep: int | None,
    *,
    every: int | None = None,
    protected: Sequence[int] = (),
) -> Pruned:
    """What prune would remove.

    keep: None keeps all.
    """
    if keep is not None and keep < 1:
        raise ValueError(f"keep={keep}: keep at least one checkpoint")
    dead: list[str] = []
    unknown: list[str] = []
    for name in backend.folders():
        if layout.parse(name) is not None:
            continue
        (dead if layout.is_leftover(name) else unknown).append(name)
    removed: list[str] = []
    unreadable: list[str] = []
    if keep is not None:
        removed, unreadable = _select(backend, keep, every, protected)
    return Pruned(tuple(removed), tuple(dead), tuple(unknown), tuple(unreadable))


def carry_out(
    backend: Backend, plan: Pruned, ranks: Ranks, keep: int | None, with_copies: bool = True
) -> Pruned:
    """What was done; what failed is in `problems`. All ranks call it with the same plan; rank 0
    removes.

    The ranks share the work of copying. If that fails, the newest of the removed checkpoints stays
    in place of the copies. keep: if all stay (None), only the newest two get copies, since looking at
    all would take ever longer.
    """
    removed, problems, copied, lacks_copies = list(plan.removed), [], 0, False

    def copy() -> int:
        remaining = remaining_folders(backend, plan.removed)[: 2 if keep is None else None]
        if not remaining:
            return 0
        return copies.make(backend, remaining, keep == 1, ranks.rank, ranks.world_size)

    if with_copies:
        copying = collective.run_with_heartbeat("checkpoint/copy", ranks, copy)
        try:
            copied = sum(collective.run_on_all("checkpoint/copied", ranks, copying.result))
        except collective.RankFailed as error:
            lacks_copies = True
            problem = f"no second copies of all that stays could be written: {error}"
            names = [name for name in map(layout.parse, removed) if name]
            newest = next(iter(catalog.intact_newest_first(backend, names)), None)
            if newest:
                removed.remove(newest)
                problem += f"; {newest} stays in their place"
            problems.append(problem)
    failed = _remove(backend, [*removed, *plan.leftovers]) if ranks.rank == 0 else {}
    for folder, reason in failed.items():
        path = f" ({reason.filename})" if reason.filename else ""
        problems.append(f"{folder} was not removed: {reason.strerror or reason}{path}")
    return replace(
        plan,
        removed=tuple(folder for folder in removed if folder not in failed),
        leftovers=tuple(name for name in plan.leftovers if name not in failed),
        problems=tuple(problems),
        copied_bytes=copied,
        lacks_copies=lacks_copies,
    )


def remaining_folders(backend: Backend, removed: Sequence[str]) -> list[str]:
    """What stays, the newest first, without links: where these lead may be elsewhere tomorrow."""
    left_out = {*removed, *backend.linked()}
    return [folder for folder in catalog.intact_newest_first(backend) if folder not in left_out]


def _remove(backend: Backend, folders: Sequence[str]) -> dict[str, OSError]:
    """Removes all that it can; why it could not remove the others."""
    failed = {}
    backend.remove_rests()
    for folder in folders:
        try:
            backend.remove(folder)
        except OSError as error:
            failed[folder] = error
    return failed


def _select(
    backend: Backend, keep: int, every: int | None, protected_steps: Sequence[int] = ()
) -> tuple[list[str], list[str]]:
    """The checkpoints to remove, in order of steps; and those whose manifest cannot be read.

    The latter stay unless every retained checkpoint is of a later step. What an operator linked or
    mounted stays and does not count; what links lead to stays too. A save may run meanwhile:
    what it commits after the listing is not in it, and what `latest` is about to name was committed
    last.
    """
    present = catalog.committed(backend)
    # The last commit first.
    by_age = list(map(layout.parse, catalog.intact_newest_first(backend, present)))
    linked = backend.linked()
    protected = {layout.parse(catalog.latest(backend) or ""), *by_age[:1]}
    protected.update(map(layout.parse, (*linked, *linked.values())))
    last_of_step: dict[int, layout.CheckpointName] = {}
    for name in by_age:
        if name is not None and str(name) not in linked:
            last_of_step.setdefault(name.step, name)
    last_commits = list(last_of_step.values())
    retained = set(last_commits[:keep])
    retained.update(name for name in last_commits if name.step in protected_steps)
    if every:
        retained.update(name for name in last_commits if name.step % every == 0)
    first_step = min((name.step for name in retained), default=None)
    unreadable = []
    removed = []
    for name in present:
        is_unreadable = name not in by_age
        stays = first_step is None or name.step >= first_step or name in protected
        if is_unreadable and stays:
            unreadable.append(str(name))
        elif name not in retained and name not in protected:
            removed.append(str(name))
    return removed, unreadable
