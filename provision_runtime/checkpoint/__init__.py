"""Checkpoints that are either whole or absent: hashed, verified before use, and cheap to repeat.

    save({"model": model, "optim": optimizer}, root, step=1000)   # on all ranks
    load({"model": model, "optim": optimizer}, root)   # the latest; the number of ranks may differ

A failure on one rank is NotCommitted on all. CheckpointManager does this every so many steps.

A save writes to a temporary folder, syncs it, and renames it into place. Plain
`torch.distributed.checkpoint.load` can read the result: `path(root)` is its checkpoint_id.

From the state dict to the disk: nested.py (live objects in it), plan.py (which rank writes what),
serialize.py (one piece as bytes), writer.py (hashing, writing, linking), commit.py (the order of
the steps), backends/ (kinds of stores), manifest.py and layout.py (what is on the disk). Back:
catalog.py, verification.py, loader.py (the order), match.py (what a state dict needs), reader.py
(into memory). inspection/ is the command `checkpoint`. path, latest, list_steps, contents,
metadata, verify and prune work without torch. training_run.py is CheckpointManager, plain.py reads
torch's own checkpoints.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from . import catalog, layout, loader, retention, saver, verification
from .backends import Backend, Traits, open_root
from .commit import SaveProgress
from .errors import CheckpointError, CheckpointWarning, DamagedFile, NoCheckpoint, NotCommitted
from .items import OBJECT
from .loader import LATEST, REFUSE, LoadReport
from .plain import read_plain
from .retention import Pruned
from .saver import SaveReport
from .training_run import CheckpointManager
from .verification import Damage

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from concurrent.futures import Future

    from ..comm.ranks import Ranks
    from .manifest import Manifest

__all__ = [
    "Backend",
    "CheckpointError",
    "CheckpointManager",
    "CheckpointWarning",
    "Damage",
    "DamagedFile",
    "LoadReport",
    "NoCheckpoint",
    "NotCommitted",
    "Pruned",
    "SaveProgress",
    "SaveReport",
    "Traits",
    "contents",
    "latest",
    "list_steps",
    "load",
    "metadata",
    "path",
    "prune",
    "read_plain",
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
    for_dcp: bool = True,
    metadata: Mapping[str, Any] | None = None,
    progress: Callable[[SaveProgress], None] = lambda _: None,
    deadline_s: float = DEADLINE_S,
    **options: Any,
) -> SaveReport:
    """Commits the state dict as checkpoint `step`; all ranks call it.

    Modules, optimizers and whatever else has state_dict and load_state_dict may lie at any depth of
    dicts, lists and tuples; their state dicts are saved. Other objects that hold tensors or such
    objects are refused, since `load` could not fill them.

    If several ranks hold a value under one name, one of them writes it, so a value that differs
    from rank to rank (the state of a random generator) needs a name per rank. Each rank writes its
    own parts of DTensors and ShardedTensors. An existing step is replaced: readers see the old one
    until the new one is whole.

    root: a folder, or a URL that fsspec supports, with its `options`. ranks: how the ranks exchange
    values; by default through the store of the default process group. incremental: link what has
    not changed since the latest checkpoint. for_dcp: also write what `dcp.load` needs; rank 0 then
    imports torch.distributed.checkpoint, which takes seconds on a slow disk. metadata: your own
    values for the manifest, anything JSON can hold; those of rank 0 count. progress: called on
    every rank at least once a second, with the bytes of all ranks; an exception in it ends the
    save. deadline_s: how long a rank may be silent.

    Raises NotCommitted, on every rank, if a rank failed or fell silent: nothing new is visible, and
    the earlier checkpoints are untouched. CheckpointError, on every rank, if a state dict cannot be
    saved, or those of the ranks do not fit together. ValueError, on the rank that passed it, if the
    step is not a whole number of 0 or more.
    """
    return saver.save(
        state_dict,
        partial(open_root, root, **options),
        step,
        _default_ranks(ranks, deadline_s),
        incremental=incremental,
        for_dcp=for_dcp,
        metadata=metadata,
        progress=progress,
    )


def save_async(
    state_dict: Mapping[str, Any],
    root: str | os.PathLike[str] | Backend,
    *,
    step: int,
    ranks: Ranks | None = None,
    incremental: bool = True,
    metadata: Mapping[str, Any] | None = None,
    progress: Callable[[SaveProgress], None] = lambda _: None,
    deadline_s: float = DEADLINE_S,
    **options: Any,
) -> Future[SaveReport]:
    """Like save, but returns once the state is copied to host memory; the rest runs in the
    background.

    The future's result is the report, or it raises NotCommitted. Call result() before the process
    group is destroyed. The process does not end before the save is over.

    Waits first for a save that is still running, and warns if that failed and its future was never
    checked. The copy stays for the next save, which neither copies nor hashes what still equals it.
    Raises ValueError for ranks that use collectives (ranks.through_group).
    """
    ranks = _default_ranks(ranks, deadline_s)
    if ranks.uses_collectives:
        raise ValueError(
            "save_async cannot use ranks that exchange values by collectives: "
            "the training goes on meanwhile and needs them for itself"
        )
    return saver.save_async(
        state_dict,
        partial(open_root, root, **options),
        step,
        ranks,
        incremental=incremental,
        metadata=metadata,
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
    strict: bool = True,
    deadline_s: float = DEADLINE_S,
    **options: Any,
) -> LoadReport:
    """Reads a checkpoint into the tensors of the state dict, in place, and its other values; all
    ranks call it.

    Verifies every file and matches every name before it changes anything. The number of ranks, and
    how tensors are cut, may differ from the save's, and so may dtypes of the same kind (a float
    never becomes an integer). Modules, optimizers and other objects with state_dict and
    load_state_dict, at any depth of dicts, lists and tuples, are filled, and never replaced; also an
    optimizer that has taken no step yet. The checkpoint must have all names of the state dict. A
    dict may ask for part of what was saved; such an object, a list and a tuple must take all of it,
    on one rank or another.

    strict=False: values whose names the checkpoint lacks stay as they are, and the report names
    them (`missing`), and those that only the checkpoint has (`unexpected`). Shapes must fit all the
    same.

    A damaged file with another intact copy is replaced by that, with a CheckpointWarning.
    on_damage="previous": skips a checkpoint with other damage, with a warning and in the report, for
    the newest intact one before it. allow_pickle: also reads objects that must be unpickled, which can
    run code; numbers, strings, tensors, and lists and dicts of them do not need it.

    Raises DamagedFile, which names the file and the tensors in it; NoCheckpoint, which lists the
    steps that exist; CheckpointError, with all names that are missing or do not fit, or if a rank
    is missing; OSError if the store fails. Always on every rank, with the state dict unchanged
    (unless the store fails while it is read). An invalid option is a ValueError on its rank and a
    CheckpointError on the others.
    """
    return loader.load(
        state_dict,
        partial(open_root, root, **options),
        step,
        _default_ranks(ranks, deadline_s),
        on_damage=on_damage,
        allow_pickle=allow_pickle,
        strict=strict,
    )


def latest(root: str | os.PathLike[str] | Backend, **options: Any) -> int | None:
    """The step that was committed last, which need not be the highest; None if there is none.

    If `latest` is damaged, the last of those that can be read.
    """
    backend = open_root(root, **options)
    return catalog.step_of(catalog.latest(backend))


def path(
    root: str | os.PathLike[str] | Backend, *, step: int | str = LATEST, **options: Any
) -> str:
    """The folder of a checkpoint, for other readers (`dcp.load(state_dict,
    checkpoint_id=path(root))`).

    Raises NoCheckpoint; DamagedFile if `latest` is damaged.
    """
    backend = open_root(root, **options)
    return f"{backend.root}/{loader.folder_of(backend, step)}"


def list_steps(root: str | os.PathLike[str] | Backend, **options: Any) -> list[int]:
    """Committed steps in ascending order, without unfinished ones."""
    return [name.step for name in catalog.steps(open_root(root, **options))]


def contents(
    root: str | os.PathLike[str] | Backend, *, step: int | str = LATEST, **options: Any
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """What a checkpoint holds: type and shape by name, such as `("torch.float32", (8, 1))`;
    `("object", ())` for what is no tensor.

    Reads only the manifest. Raises NoCheckpoint; DamagedFile if manifest or `latest` is damaged.
    """
    content = _manifest(open_root(root, **options), step)
    by_name: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, tensor in content.tensors.items():
        by_name[name] = (tensor.dtype, tensor.shape)
    for name in content.objects:
        by_name[name] = (OBJECT, ())
    return dict(sorted(by_name.items()))


def metadata(
    root: str | os.PathLike[str] | Backend, *, step: int | str = LATEST, **options: Any
) -> dict[str, Any]:
    """What `save` was given as metadata. Raises as `contents` does."""
    return _manifest(open_root(root, **options), step).metadata


def _manifest(backend: Backend, step: int | str) -> Manifest:
    return catalog.read_manifest(backend, loader.folder_of(backend, step))


def verify(
    root: str | os.PathLike[str] | Backend, *, step: int | str = LATEST, **options: Any
) -> list[Damage]:
    """All damage of a checkpoint, every byte hashed; empty if it is intact. Raises NoCheckpoint."""
    backend = open_root(root, **options)
    for _ in range(catalog.TRIES):
        folder, latest_damage = loader.look_up(backend, step)
        damages = verification.check_folder(backend, folder)
        if latest_damage:
            damages.insert(0, Damage(".", layout.LATEST, latest_damage.problem))
        if not damages or folder in backend.folders():
            break
        # It was replaced or pruned while it was read.
    return damages


def prune(
    root: str | os.PathLike[str] | Backend,
    *,
    keep: int,
    every: int | None = None,
    dry_run: bool = False,
    **options: Any,
) -> Pruned:
    """Removes old checkpoints, and unfinished ones whose writers died. One process calls it.

    Keeps the last `keep` committed steps, the multiples of `every`, the latest, and links to steps.
    Files that the remaining checkpoints share with the removed ones stay, and get a second copy
    first. Warns (CheckpointWarning) of what could not be removed or copied, which is in the
    result's `problems` too, and removes the others.
    """
    return retention.prune(open_root(root, **options), keep, every=every, dry_run=dry_run)


def _default_ranks(ranks: Ranks | None, deadline_s: float) -> Ranks:
    if ranks is not None:
        return ranks
    from ..comm.ranks import of_default_group

    return of_default_group(deadline_s)
