"""Checkpoints that are either whole or absent: hashed, verified before use, and cheap to repeat.

    save({"model": model, "optim": optimizer}, root, step=1000)   # on all ranks
    load({"model": model, "optim": optimizer}, root)   # the latest; the number of ranks may differ

A failure on one rank is NotCommitted on all. CheckpointManager does this every so many steps.

A save writes to a temporary folder, syncs it, and renames it into place.

From the state dict to the disk: nested.py (live objects in it), plan.py (which rank writes what),
memory.py (the bytes of tensors), writer.py (hashing, writing, linking), commit.py (the order of
the steps), publication.py (rank 0's part), storage.py (the folder on the disk), manifest.py and layout.py
(what is on the disk). Back: catalog.py, verification.py, loader.py (the order), match.py
(what a state dict needs), reader.py (into memory). inspection/ is the command `checkpoint`. path,
latest, list_steps, contents, metadata, verify and prune work without torch. training_run.py is
CheckpointManager, plain.py and export.py read and write the files of others.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from . import catalog, loader, retention, saver, verification
from .catalog import LATEST, REFUSE
from .commit import SaveReport
from .errors import CheckpointError, CheckpointWarning, DamagedFile, NoCheckpoint, NotCommitted
from .items import OBJECT, StateDict
from .loader import LoadReport
from .memory import dtype_of
from .plain import read_plain
from .progress import LoadCallback, LoadProgress, SaveCallback, SaveProgress
from .retention import Pruned
from .rng import PerRank, Rng, restore_rng, rng_state
from .storage import Root, Step, Storage
from .training_run import CheckpointManager
from .verification import Damage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from ..comm.ranks import Ranks

__all__ = [
    "CheckpointError",
    "CheckpointManager",
    "CheckpointWarning",
    "Damage",
    "DamagedFile",
    "LoadProgress",
    "LoadReport",
    "NoCheckpoint",
    "NotCommitted",
    "PerRank",
    "Pruned",
    "Rng",
    "SaveProgress",
    "SaveReport",
    "contents",
    "latest",
    "list_steps",
    "load",
    "metadata",
    "path",
    "prune",
    "read",
    "read_plain",
    "restore_rng",
    "rng_state",
    "save",
    "save_async",
    "verify",
]

DEADLINE_S = 120.0


def save(
    state_dict: Mapping[str, object],
    root: Root,
    *,
    step: int,
    ranks: Ranks | None = None,
    incremental: bool = True,
    metadata: Mapping[str, object] | None = None,
    progress: SaveCallback | None = None,
    deadline_s: float = DEADLINE_S,
) -> SaveReport:
    """Commits the state dict as checkpoint `step`; all ranks call it.

    Modules, optimizers and whatever else has state_dict and load_state_dict may lie at any depth of
    dicts, lists and tuples; their state dicts are saved. Other objects that hold tensors or such
    objects are refused, since `load` could not fill them.

    If several ranks hold a value under one name, one of them writes it, so a value that differs
    from rank to rank (the state of a random generator) needs a name per rank. Each rank writes its
    own parts of DTensors and ShardedTensors. An existing step is replaced: readers see the old one
    until the new one is whole.

    Args:
        state_dict: This rank's values by name: tensors of any shape, dtype and device, objects with
            state_dict, and what pickle can hold.
        root: The folder of the run's checkpoints.
        step: The number of the training step, 0 or more.
        ranks: How the ranks exchange values. Default: through the store of the default process group.
        incremental: Links what has not changed since the latest checkpoint, instead of writing it.
        metadata: Values of your own for the manifest, anything that JSON can hold. Rank 0's count.
        progress: Called on every rank at least once a second, with the bytes of all ranks. An
            exception in it ends the save. None: rank 0 prints a line to standard error every ten
            seconds.
        deadline_s: Seconds that a rank may be silent. A save may take longer. Without effect if
            `ranks` is passed, which have a time-out of their own.

    Returns:
        What was written and linked, in bytes, and how long it took, in seconds.

    Raises:
        NotCommitted: On every rank, if a rank failed or fell silent. Nothing new is visible, and the
            earlier checkpoints are untouched.
        CheckpointError: On every rank, if a state dict cannot be saved, if those of the ranks do not
            fit together, or if another rank was passed a wrong argument.
        ValueError: On the rank that was passed it, if the step is not a whole number of 0 or more,
            or the metadata are not what JSON can hold.
    """
    write = saver.prepare(
        state_dict,
        root,
        step,
        _default_ranks(ranks, deadline_s),
        in_background=False,
        metadata=metadata,
        incremental=incremental,
        progress=progress,
    )
    return write()


def save_async(
    state_dict: Mapping[str, object],
    root: Root,
    *,
    step: int,
    ranks: Ranks | None = None,
    incremental: bool = True,
    metadata: Mapping[str, object] | None = None,
    progress: SaveCallback | None = None,
    deadline_s: float = DEADLINE_S,
) -> Future[SaveReport]:
    """Like save, but returns once the state is copied to host memory; the rest runs in the
    background.

    Waits first for a save that is still running, and warns if that failed and its future was never
    checked. The memory of the copy stays for the next save.
    The process does not end before the save is over.

    Args:
        state_dict: As for save. It may change as soon as this returns.
        root: As for save.
        step: As for save.
        ranks: As for save.
        incremental: As for save.
        metadata: As for save.
        progress: As for save, called in the background's thread.
        deadline_s: As for save.

    Returns:
        A future. Its result is the report, or it raises NotCommitted. Call `result()` before the
        process group is destroyed.

    Raises:
        ValueError: As save.
        CheckpointError: As save.
    """
    write = saver.prepare(
        state_dict,
        root,
        step,
        _default_ranks(ranks, deadline_s),
        in_background=True,
        metadata=metadata,
        incremental=incremental,
        progress=progress,
    )
    return saver.BACKGROUND.start(write)


def load(
    state_dict: StateDict,
    root: Root,
    *,
    step: Step = LATEST,
    ranks: Ranks | None = None,
    on_damage: str = REFUSE,
    allow_pickle: bool = False,
    strict: bool = True,
    progress: LoadCallback | None = None,
    deadline_s: float = DEADLINE_S,
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

    A damaged file with another intact copy is replaced by that, with a CheckpointWarning.

    Args:
        state_dict: What to fill on this rank. Tensors have the global shapes of the save.
        root: The folder of the run's checkpoints.
        step: The number of a step, or "latest": the one that was committed last.
        ranks: How the ranks exchange values. Default: through the store of the default process group.
        on_damage: "refuse", or "previous": skips a checkpoint with damage that cannot be healed for
            the newest intact one before it, with a warning and in the report.
        allow_pickle: Also reads objects that must be unpickled, which can run code. Numbers, strings,
            tensors, and lists and dicts of them do not need it.
        strict: False leaves values that the checkpoint lacks as they are, and names them in the
            report (`missing`), with those that only the checkpoint has (`unexpected`). Shapes must
            fit all the same.
        progress: Called on every rank at least once a second, with the bytes of this rank. An
            exception in it ends the load. None: as for save.
        deadline_s: Seconds that a rank may be silent, as for save.

    Returns:
        Which checkpoint was loaded, how many bytes, and how long it took, in seconds.

    Raises:
        DamagedFile: With the file and the names of the tensors in it.
        NoCheckpoint: With the steps that exist.
        CheckpointError: With all names that are missing or do not fit; if a rank is missing; or if
            another rank was passed a wrong argument.
        OSError: If the disk fails. All these are raised on every rank, with the state dict
            unchanged (unless the disk fails while it is read).
        ValueError: On the rank that was passed it, for another on_damage, or a step that is no number.
    """
    return loader.load(
        state_dict,
        root,
        step,
        _default_ranks(ranks, deadline_s),
        on_damage=on_damage,
        allow_pickle=allow_pickle,
        strict=strict,
        progress=progress,
    )


def read(
    root: Root,
    *,
    step: Step = LATEST,
    allow_pickle: bool = False,
) -> StateDict:
    """Reads all of a checkpoint into host memory, on one process, without objects to fill.

    Verifies every file, as load does.

    Args:
        root: The folder of the run's checkpoints.
        step: The number of a step, or "latest".
        allow_pickle: As for load.

    Returns:
        The values by their full names, such as `"model.0.weight"`; nested values are taken apart.

    Raises:
        NoCheckpoint: With the steps that exist.
        DamagedFile: With the file and the names of the tensors in it.
        CheckpointError: If it holds objects that must not be unpickled, or types that this torch
            does not have.
        OSError: If the disk fails.
    """
    import torch

    from ..comm.ranks import single_process

    state_dict: StateDict = {}
    for name, (kind, shape) in contents(root, step=step).items():
        if kind == OBJECT:
            state_dict[name] = None
        else:
            state_dict[name] = torch.empty(shape, dtype=dtype_of(kind), device="cpu")
    load(
        state_dict,
        root,
        step=step,
        ranks=single_process(),
        allow_pickle=allow_pickle,
    )
    return state_dict


def latest(root: Root) -> int | None:
    """The step that was committed last, which need not be the highest.

    Args:
        root: The folder of the run's checkpoints.

    Returns:
        The number of the step; None if there is none.

    Raises:
        OSError: If the disk fails.
    """
    return catalog.step_of(catalog.latest(Storage(root)))


def path(
    root: Root,
    *,
    step: Step = LATEST,
) -> str:
    """The folder of a checkpoint.

    Args:
        root: The folder of the run's checkpoints.
        step: The number of a step, or "latest".

    Returns:
        Its path.

    Raises:
        NoCheckpoint: With the steps that exist.
        OSError: If the disk fails.
    """
    storage = Storage(root)
    return f"{storage.root}/{catalog.folder_of(storage, step)}"


def list_steps(root: Root) -> list[int]:
    """The committed steps, without unfinished ones.

    Args:
        root: The folder of the run's checkpoints.

    Returns:
        Their numbers, in ascending order.

    Raises:
        OSError: If the disk fails.
    """
    return [name.step for name in catalog.steps(Storage(root))]


def contents(
    root: Root,
    *,
    step: Step = LATEST,
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The names in a checkpoint, with their types and shapes. Reads only the manifest.

    Args:
        root: The folder of the run's checkpoints.
        step: The number of a step, or "latest".

    Returns:
        Type and global shape by name, such as `("torch.float32", (8, 1))`; `("object", ())` for what
        is no tensor.

    Raises:
        NoCheckpoint: With the steps that exist.
        DamagedFile: If the manifest is damaged.
        OSError: If the disk fails.
    """
    _, content = catalog.read_step(Storage(root), step)
    by_name = {name: (tensor.dtype, tensor.shape) for name, tensor in content.tensors.items()}
    for name in content.objects:
        by_name[name] = (OBJECT, ())
    return dict(sorted(by_name.items()))


def metadata(
    root: Root,
    *,
    step: Step = LATEST,
) -> StateDict:
    """The metadata that `save` was given.

    Args:
        root: The folder of the run's checkpoints.
        step: The number of a step, or "latest".

    Returns:
        The values by name; empty if there were none.

    Raises:
        NoCheckpoint: With the steps that exist.
        DamagedFile: If the manifest is damaged.
        OSError: If the disk fails.
    """
    return catalog.read_step(Storage(root), step)[1].metadata


def verify(
    root: Root,
    *,
    step: Step = LATEST,
) -> list[Damage]:
    """Hashes every byte of a checkpoint. Changes nothing, and needs no torch.

    Args:
        root: The folder of the run's checkpoints.
        step: The number of a step, or "latest".

    Returns:
        All damage; empty if the checkpoint is intact.

    Raises:
        NoCheckpoint: With the steps that exist.
        OSError: If the disk fails.
    """
    return verification.check_step(Storage(root), step)


def prune(
    root: Root,
    *,
    keep: int,
    every: int | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Removes old checkpoints, and unfinished ones whose writers died. One process calls it.

    The latest, and links to steps, always stay. Files that the remaining checkpoints share with the
    removed ones stay, and get a second copy first. What could not be removed or copied is a
    CheckpointWarning and in the result's `problems`; the others are removed.

    Args:
        root: The folder of the run's checkpoints.
        keep: How many of the last committed steps stay, 1 or more.
        every: Steps that are multiples of this number stay too.
        dry_run: Removes nothing.

    Returns:
        What was removed, or would be, and what stays because it is unknown or cannot be read.

    Raises:
        ValueError: If keep is less than 1.
        OSError: If the root cannot be read.
    """
    pruned = retention.prune(Storage(root), keep, every=every, dry_run=dry_run)
    for problem in pruned.problems:
        warnings.warn(problem, CheckpointWarning, stacklevel=2)
    return pruned


def _default_ranks(ranks: Ranks | None, deadline_s: float) -> Ranks:
    if ranks is not None:
        return ranks
    from ..comm.ranks import of_default_group

    return of_default_group(deadline_s)
