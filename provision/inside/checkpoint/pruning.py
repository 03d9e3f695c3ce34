"""Taking old checkpoints away: never the latest, and never what a later one still needs. Works without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import finding, layout

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


def prune(backend: Backend, keep: int, *, every: int | None = None, dry_run: bool = False) -> Pruned:
    """Keep the `keep` newest steps (by step, as the names say) that can be read, those that `every` divides, and whatever `latest`
    names. Raises ValueError where fewer than one is to be kept."""
    found = plan(backend, keep, every=every)
    if not dry_run:
        carry_out(backend, found)
    return found


def plan(backend: Backend, keep: int | None, *, every: int | None = None, unfinished: Sequence[str] = ()) -> Pruned:
    """What prune would remove. keep: None for all. unfinished: folders whose writer cannot be seen, but is known to have ended."""
    if keep is not None and keep < 1:
        raise ValueError(f"keep={keep}: at least one checkpoint must be kept")
    there = [name for name in backend.folders() if layout.parse(name) is None]
    dead = [name for name in there if name in unfinished or layout.is_leftover(name)]
    going, unreadable = ([], []) if keep is None else _going(backend, keep, every)
    return Pruned(tuple(going), tuple(dead), tuple(name for name in there if name not in dead), tuple(unreadable))


def carry_out(backend: Backend, found: Pruned) -> None:
    backend.remove(*found.removed, *found.leftovers)


def _going(backend: Backend, keep: int, every: int | None) -> tuple[list[str], list[str]]:
    """Those to remove, in order; and those newer than the last that is counted whose manifest cannot be read.

    Somebody may save meanwhile: what is committed after the listing is not in it, and what `latest` is about to name was committed last.
    """
    present = finding.committed(backend)
    spared = {finding.latest(backend), *finding.by_age(backend, present)[:1]}
    going, unreadable, kept = [], [], set()
    counted = 0
    for name in reversed(present):
        if name.step in kept:  # an older generation
            going += [str(name)] if str(name) not in spared else []
        elif counted < keep and finding.manifest_if_whole(backend, str(name)) is None:
            unreadable.append(str(name))
        elif counted < keep or (every and name.step % every == 0) or str(name) in spared:
            kept.add(name.step)
            counted += 1
        else:
            going.append(str(name))
    return going[::-1], unreadable[::-1]
