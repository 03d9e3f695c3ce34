"""Taking old checkpoints away: never the latest, and never what a later one still needs. Works without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import finding, layout

if TYPE_CHECKING:
    from .backends import Backend


@dataclass(frozen=True)
class Pruned:
    """Names of folders: committed ones that went, unfinished ones of dead writers that went, and unfinished ones that were left,
    since their writer may live (on another host, or in another container)."""

    removed: tuple[str, ...]
    leftovers: tuple[str, ...]
    unknown: tuple[str, ...]


def prune(backend: Backend, keep: int, *, every: int | None = None, dry_run: bool = False) -> Pruned:
    """Keep the `keep` newest steps (by step, as the names say), those that `every` divides, and whatever `latest` names.

    Raises ValueError where fewer than one is to be kept.
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: at least one checkpoint must be kept")
    unfinished = [name for name in backend.folders() if layout.parse(name) is None]
    going = _going(backend, keep, every)
    dead = [name for name in unfinished if _is_dead(name)]
    if not dry_run:
        for name in (*going, *dead):
            backend.remove(name)
    return Pruned(tuple(going), tuple(dead), tuple(name for name in unfinished if name not in dead))


def _going(backend: Backend, keep: int, every: int | None) -> list[str]:
    newest = finding.steps(backend)
    kept = set(newest[-keep:]) | {name for name in newest if every and name.step % every == 0}
    latest = finding.latest(backend)
    return [str(name) for name in finding.committed(backend) if name not in kept and str(name) != latest]


def _is_dead(folder: str) -> bool:
    writer = layout.writer(folder)
    return writer is not None and writer.is_gone()
