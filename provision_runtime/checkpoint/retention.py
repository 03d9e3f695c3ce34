"""Removing old checkpoints: never the latest, and never what a later one still needs.

Works without torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import catalog, layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .backends import Backend


@dataclass(frozen=True)
class Pruned:
    """Names of folders.

    removed: committed checkpoints. leftovers: unfinished folders of dead writers, removed too.
    unknown: unfinished folders that stay, since their writer may be alive (on another host or in
    another container). unreadable: committed checkpoints that stay, since their age is unknown:
    their manifest cannot be read.
    """

    removed: tuple[str, ...]
    leftovers: tuple[str, ...]
    unknown: tuple[str, ...]
    unreadable: tuple[str, ...] = ()


def prune(
    backend: Backend,
    keep: int,
    *,
    every: int | None = None,
    protected: Sequence[int] = (),
    dry_run: bool = False,
) -> Pruned:
    """Keeps the last `keep` committed steps, the multiples of `every`, the `protected` steps, and
    what `latest` names.

    Steps that cannot be read do not count. The order of commits decides, so a run that resumed from
    an earlier step keeps its own checkpoints. Raises ValueError if `keep` is less than 1.
    """
    plan = plan_pruning(backend, keep, every=every, protected=protected)
    if not dry_run:
        carry_out(backend, plan)
    return plan


def plan_pruning(
    backend: Backend,
    keep: int | None,
    *,
    every: int | None = None,
    unfinished: Sequence[str] = (),
    protected: Sequence[int] = (),
) -> Pruned:
    """What prune would remove.

    keep: None keeps all. unfinished: folders to remove because the caller knows that their writer
    has ended.
    """
    if keep is not None and keep < 1:
        raise ValueError(f"keep={keep}: keep at least one checkpoint")
    dead: list[str] = []
    unknown: list[str] = []
    for name in backend.folders():
        if layout.parse(name) is not None:
            continue
        is_dead = name in unfinished or layout.is_leftover(name)
        (dead if is_dead else unknown).append(name)
    removed: list[str] = []
    unreadable: list[str] = []
    if keep is not None:
        removed, unreadable = _select(backend, keep, every, protected)
    return Pruned(tuple(removed), tuple(dead), tuple(unknown), tuple(unreadable))


def carry_out(backend: Backend, plan: Pruned) -> None:
    backend.remove(*plan.removed, *plan.leftovers)


def _select(
    backend: Backend, keep: int, every: int | None, protected_steps: Sequence[int] = ()
) -> tuple[list[str], list[str]]:
    """The checkpoints to remove, in order of steps; and those whose manifest cannot be read.

    The latter stay unless every retained checkpoint is of a later step. A save may run meanwhile:
    what it commits after the listing is not in it, and what `latest` is about to name was committed
    last.
    """
    present = catalog.committed(backend)
    # The last commit first.
    by_age = []
    for folder in catalog.intact_newest_first(backend, present):
        name = layout.parse(folder)
        if name is not None:
            by_age.append(name)
    protected = {layout.parse(catalog.latest(backend) or ""), *by_age[:1]}
    last_of_step: dict[int, layout.CheckpointName] = {}
    for name in by_age:
        last_of_step.setdefault(name.step, name)
    last_commits = [name for name in by_age if last_of_step[name.step] == name]
    retained = set(last_commits[:keep])
    retained.update(name for name in last_commits if name.step in protected_steps)
    if every:
        retained.update(name for name in last_commits if name.step % every == 0)
    first_step = min((name.step for name in retained), default=None)
    unreadable = []
    removed = []
    for name in present:
        is_unreadable = name not in by_age
        if is_unreadable and (first_step is None or name.step >= first_step):
            unreadable.append(str(name))
        elif name not in retained and name not in protected:
            removed.append(str(name))
    return removed, unreadable
