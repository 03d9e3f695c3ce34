"""Taking old checkpoints away: never the latest, and never what a later one still needs. Works without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import catalog, layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .backends import Backend


@dataclass(frozen=True)
class Pruned:
    """Names of folders: committed ones that went; unfinished ones of dead writers that went; unfinished ones that were left, since
    their writer may live (on another host, or in another container); committed ones that were left, since their manifest cannot be
    read here and so it is not known what they are worth."""

    removed: tuple[str, ...]
    leftovers: tuple[str, ...]
    unknown: tuple[str, ...]
    unreadable: tuple[str, ...] = ()


def prune(
    backend: Backend, keep: int, *, every: int | None = None, dry_run: bool = False
) -> Pruned:
    """Keep the `keep` steps that were committed last and can be read, those that `every` divides, and whatever `latest` names: a run that
    went back and goes on from there keeps its own. Raises ValueError where fewer than one is to be kept."""
    found = plan(backend, keep, every=every)
    if not dry_run:
        carry_out(backend, found)
    return found


def plan(
    backend: Backend, keep: int | None, *, every: int | None = None, unfinished: Sequence[str] = ()
) -> Pruned:
    """What prune would remove. keep: None for all. unfinished: folders whose writer cannot be seen, but is known to have ended."""
    if keep is not None and keep < 1:
        raise ValueError(f"keep={keep}: at least one checkpoint must be kept")
    there = [name for name in backend.folders() if layout.parse(name) is None]
    dead = [name for name in there if name in unfinished or layout.is_leftover(name)]
    going, unreadable = ([], []) if keep is None else _going(backend, keep, every)
    return Pruned(
        tuple(going),
        tuple(dead),
        tuple(name for name in there if name not in dead),
        tuple(unreadable),
    )


def carry_out(backend: Backend, found: Pruned) -> None:
    backend.remove(*found.removed, *found.leftovers)


def _going(backend: Backend, keep: int, every: int | None) -> tuple[list[str], list[str]]:
    """Those to remove, in order of steps; and those whose manifest cannot be read, which stay unless all that are kept are later steps.

    Somebody may save meanwhile: what is committed after the listing is not in it, and what `latest` is about to name was committed last.
    """
    present = catalog.committed(backend)
    ages = [
        name for name in map(layout.parse, catalog.by_age(backend, present)) if name
    ]  # the last commit first
    spared = {layout.parse(catalog.latest(backend) or ""), *ages[:1]}
    newest = {name.step: name for name in reversed(ages)}  # of each step, the last commit
    last = [name for name in ages if newest[name.step] == name]
    kept = {*last[:keep], *(name for name in last if every and name.step % every == 0)}
    lost = [name for name in present if name not in ages]
    unreadable = [name for name in lost if not kept or name.step >= min(one.step for one in kept)]
    going = [
        name
        for name in present
        if name not in kept and name not in spared and name not in unreadable
    ]
    return list(map(str, going)), list(map(str, unreadable))
