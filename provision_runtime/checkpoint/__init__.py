"""Checkpoints that are whole or absent: written beside their name, hashed, renamed in, verified before use, cheap to repeat.

    save(model.state_dict(), root, step=1000)        # on all ranks; whole and durable on return, or NotCommitted on all
    load(state_dict, root)                           # the latest, every file verified first; the number of ranks may differ

Plain `torch.distributed.checkpoint.load` reads them too: `path(root)` is its checkpoint_id. Modules from the state dict to the disk:
planning.py (which rank writes what), serializing.py (one piece as bytes), writing.py (hashing, by hashes.py, writing, linking),
filling.py (all ranks' files), commit.py (the order of the steps), backends/ (kinds of stores), manifest.py and layout.py (what lies
there); back: finding.py, verifying.py, loading.py (the order), matching.py (what a state dict needs), reading.py (into memory).
Without torch work: path, latest, list_steps, verify, prune.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from . import catalog, layout, loader, retention, saver, verification
from .backends import Backend, Traits, open_root
from .loader import LATEST, REFUSE, LoadReport, NoCheckpoint
from .manifest import CheckpointError, DamagedFile
from .progress import Doing, NotCommitted
from .retention import Pruned
from .saver import SaveReport
from .verification import Damage

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from concurrent.futures import Future

    from ..comm.ranks import Ranks

__all__ = [
    "Backend",
    "CheckpointError",
    "Damage",
    "DamagedFile",
    "Doing",
    "LoadReport",
    "NoCheckpoint",
    "NotCommitted",
    "Pruned",
    "SaveReport",
    "Traits",
    "latest",
    "list_steps",
    "load",
    "path",
    "prune",
    "save",
    "save_async",
    "verify",
]

DEADLINE_S = 120.0


def save(
    state_dict: Mapping[str, Any],
    root: str | os.PathLike[str] | Backend,
    *,
    step: int,
    ranks: Ranks | None = None,
    incremental: bool = True,
    unchanged: str = saver.CONTENT,
    for_dcp: bool = True,
    progress: Callable[[Doing], None] = lambda _: None,
    deadline_s: float = DEADLINE_S,
    **options: Any,
) -> SaveReport:
    """Commit the state dict as checkpoint `step`; all ranks call it.

    What several ranks hold under one name is written by one of them: give what differs from rank to rank (the state of a random
    generator) a name per rank. DTensor and ShardedTensor are written by the ranks that have their parts. A step
    that exists is replaced: readers see the old one until the new one is whole. root: a folder, or a URL that fsspec knows with its
    `options`. ranks: how the ranks meet; by default through the store of the default process group. incremental: link what the
    latest checkpoint has too. progress: called on every rank at least once a second, with the bytes of all; what it raises ends the
    save. deadline_s: how long a rank may be silent.

    unchanged: how a tensor is known to be what the latest checkpoint has. "content": all of it is read, and told by its XXH128 where
    it is large and the package xxhash is installed (hashes.py), else by the file's bytes or the SHA-256. "version": tensors of
    1 MiB or more that were saved so before by this process are not read, but for one byte in 64, while torch's count of their in-place
    changes stands still. DANGER: some changes are not counted (recalling.py lists them: fused optimizers, `.data`, custom kernels, CUDA
    graphs...). What changes a tensor as a whole shows in the sample, is warned of, and ends the shortcut for this process; an uncounted
    change of a few rows can be missed, and the checkpoint then holds their old values.

    for_dcp: write what `dcp.load` needs too; rank 0 then imports torch.distributed.checkpoint, which takes seconds on a slow disk.

    Raises NotCommitted, on every rank, where a rank failed or fell silent: nothing new is visible, and what was there still is.
    CheckpointError, on every rank too, where a state dict holds what cannot be saved, or the ranks' do not fit together; where the
    step is no number from 0 on, or `unchanged` is neither, ValueError on the rank that was given it.
    """
    us, opened = _ranks(ranks, deadline_s), partial(open_root, root, **options)
    return saver.save(
        state_dict,
        opened,
        step,
        us,
        incremental=incremental,
        unchanged=unchanged,
        for_dcp=for_dcp,
        progress=progress,
    )


def save_async(
    state_dict: Mapping[str, Any],
    root: str | os.PathLike[str] | Backend,
    *,
    step: int,
    ranks: Ranks | None = None,
    incremental: bool = True,
    progress: Callable[[Doing], None] = lambda _: None,
    deadline_s: float = DEADLINE_S,
    **options: Any,
) -> Future[SaveReport]:
    """As save, but returns when the state is copied to host memory; the future's result is the report, or it raises NotCommitted.

    A save that is still under way is waited for first; where it failed and nobody asked its future, a warning says so. The copy stays
    for the next save: what still equals it is neither copied nor hashed again. The process does not end before the save is over. Call
    the future's result() before the process group is destroyed. Raises ValueError for ranks that meet in collectives
    (ranks.through_group).
    """
    us = _ranks(ranks, deadline_s)
    if us.uses_collectives:
        raise ValueError(
            "save_async cannot use ranks that meet in collectives: those are the training's, and this runs beside it"
        )
    return saver.save_async(
        state_dict,
        partial(open_root, root, **options),
        step,
        us,
        incremental=incremental,
        progress=progress,
    )


def load(
    state_dict: dict[str, Any],
    root: str | os.PathLike[str] | Backend,
    *,
    step: int | str = LATEST,
    ranks: Ranks | None = None,
    on_damage: str = REFUSE,
    allow_pickle: bool = False,
    deadline_s: float = DEADLINE_S,
    **options: Any,
) -> LoadReport:
    """Read a checkpoint into the tensors of the state dict, in place, and its other values; all ranks call it.

    Every file is verified, and every name matched, before anything is changed. The number of ranks, and how tensors are cut, may
    differ from the save's, and so may dtypes where values are kept in kind (no float becomes an integer). All names of the state
    dict must be in the checkpoint; what the checkpoint has beyond them is left out, so a part of it can be read.
    on_damage="previous": a damaged checkpoint is passed over, with a warning and in the report, for the newest whole one before it.
    allow_pickle: also objects that only unpickling makes, which can run code; numbers, texts, tensors, and lists and dicts of them
    need it not.

    Raises DamagedFile, which names the file and the tensors in it; NoCheckpoint, which lists the steps that are there;
    CheckpointError, with all names that are missing or that stand for something else there, or where a rank did not come; OSError
    where the store fails. On every rank, whichever saw it, with the state dict as it was (unless the store fails while it is read).
    Where a rank's options are no such, what is wrong with them is raised there, and CheckpointError on the others.
    """
    us = _ranks(ranks, deadline_s)
    return loader.load(
        state_dict,
        partial(open_root, root, **options),
        step,
        us,
        on_damage=on_damage,
        allow_pickle=allow_pickle,
    )


def latest(root: str | os.PathLike[str] | Backend, **options: Any) -> int | None:
    """The step that was committed last, which need not be the highest, as far as `latest` or those that can be read tell; None where
    there is none."""
    backend = open_root(root, **options)
    return catalog.step_of(catalog.latest(backend))


def path(
    root: str | os.PathLike[str] | Backend, *, step: int | str = LATEST, **options: Any
) -> str:
    """The folder of a checkpoint, for other readers (`dcp.load(state_dict, checkpoint_id=path(root))`). Raises NoCheckpoint;
    DamagedFile where `latest` is damaged."""
    backend = open_root(root, **options)
    return f"{backend.root}/{loader.chosen(backend, step)}"


def list_steps(root: str | os.PathLike[str] | Backend, **options: Any) -> list[int]:
    """Committed steps in ascending order; what is not finished is not among them."""
    return [name.step for name in catalog.steps(open_root(root, **options))]


def verify(
    root: str | os.PathLike[str] | Backend, *, step: int | str = LATEST, **options: Any
) -> list[Damage]:
    """All that is wrong with a checkpoint, every byte hashed; empty where it is whole. Raises NoCheckpoint."""
    backend = open_root(root, **options)
    for _ in range(catalog.TRIES):
        folder, of_latest = loader.looked_up(backend, step)
        found = verification.damages(backend, folder)
        found[:0] = (
            [verification.Damage(".", layout.LATEST, of_latest.problem)] if of_latest else []
        )
        if not found or folder in backend.folders():
            return found
    return found  # replaced again and again while it was read


def prune(
    root: str | os.PathLike[str] | Backend,
    *,
    keep: int,
    every: int | None = None,
    dry_run: bool = False,
    **options: Any,
) -> Pruned:
    """Remove all but the `keep` steps that were committed last, those that `every` divides, and the latest; and what dead writers left.

    One process calls it. What later checkpoints share with the removed ones stays theirs.
    """
    return retention.prune(open_root(root, **options), keep, every=every, dry_run=dry_run)


def _ranks(given: Ranks | None, deadline_s: float) -> Ranks:
    from ..comm import ranks

    return given if given is not None else ranks.of_default_group(deadline_s)
