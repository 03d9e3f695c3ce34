"""Phase checkpoint: written by all ranks, renamed in, read back by another rank, equal; a flipped bit is refused."""

from __future__ import annotations

import json
import secrets
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import checkpoint
from ...comm import collective
from ...comm.ranks import Ranks
from ...comm.store import RanksMissing
from .. import folder, test_values
from ..outcome import Finding, Outcome, fold, united

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ..session import Session

STEP = 1
ELEMENTS = 1 << 20
ELEMENTS_QUICK = 1 << 16


def run(session: Session) -> Outcome:
    name = session.exchange("checkpoint/folder", f".provision-smoke-{secrets.token_hex(8)}")[0]
    root = session.options.checkpoint_dir / name
    session.leftovers.append(root)
    try:
        outcome = _round_trip(session, root)
    finally:
        session.clear_leftovers()
    session.exchange("checkpoint/cleared", None)
    return outcome


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    return fold(outcomes)


def _round_trip(session: Session, root: Path) -> Outcome:
    """The same outcome on every rank: a failed save or load is raised on all, and what each read is exchanged."""
    ranks = _ranks(session)
    own = {_name(session.place.rank): _state(session, session.place.rank)}
    try:
        watch = partial(_rehearse, session)
        saved = checkpoint.save(
            own, root, step=STEP, ranks=ranks, incremental=False, for_dcp=False, progress=watch
        )
    except checkpoint.NotCommitted as error:
        _raise_if_missing(error)
        name = folder.finding_id(error.errno) if error.errno else "checkpoint-failed"
        message = f"a checkpoint in {session.options.checkpoint_dir} was not written: {error.problem.replace(str(root), root.name)}"
        return Outcome(findings=(Finding(name, message, error.ranks),), broken=True)
    _inject(session, root)
    said = session.exchange("checkpoint/read", _read(session, root, ranks))
    findings = united(
        [Finding(problem[0], problem[1], (rank,)) for rank, problem in enumerate(said) if problem]
    )
    data = {"bytes": saved.bytes, "save_s": round(saved.write_s + saved.commit_s, 3)}
    return Outcome("" if findings else _in_words(session, data), findings, data, bool(findings))


def _raise_if_missing(error: checkpoint.CheckpointError) -> None:
    if isinstance(error.__cause__, RanksMissing):
        raise error.__cause__ from None


def _ranks(session: Session) -> Ranks:
    return Ranks(
        session.place.rank,
        session.place.world_size,
        lambda name, said: session.exchange(f"checkpoint/{name}", said),
    )


def _rehearse(session: Session, _: checkpoint.SaveProgress) -> None:
    """Where the user rehearses a fault, the disk fails while this rank is taken to write."""
    folder.rehearse(session, *folder.REHEARSED)


def _state(session: Session, rank: int) -> torch.Tensor:
    """What a rank saves; every rank can predict every other's."""
    import torch

    state = torch.empty(ELEMENTS_QUICK if session.options.quick else ELEMENTS, dtype=torch.float32)
    test_values.fill(state, test_values.key(session.options.seed, "checkpoint", rank))
    return state


def _read(session: Session, root: Path, ranks: Ranks) -> list[str] | None:
    """What is wrong, as id and message: reads the next rank's tensor, then has a damaged copy refused."""
    import torch

    where = session.options.checkpoint_dir
    other = (session.place.rank + 1) % session.place.world_size
    found = {_name(other): torch.zeros_like(_state(session, other))}
    try:
        checkpoint.load(found, root, step=STEP, ranks=ranks)
        if not torch.equal(found[_name(other)], _state(session, other)):
            return [
                "checkpoint-damaged",
                f"the tensor of rank {other} was read back, but it is not what was saved",
            ]
        if session.place.rank == 0 and not _refuses_damage(root):
            return ["checkpoint-failed", "a copy with one flipped bit was read without an error"]
    except checkpoint.DamagedFile as error:
        return [
            "checkpoint-damaged",
            f"{Path(error.path).name} is damaged: {error.problem} (a checkpoint in {where})",
        ]
    except checkpoint.CheckpointError as error:
        _raise_if_missing(error)
        return ["checkpoint-failed", str(error)]
    except collective.RankFailed as error:  # another rank's, which reports it
        return (
            None
            if session.place.rank not in error.ranks
            else [folder.finding_id(error.errno), str(error)]
        )
    except OSError as error:
        return [
            folder.finding_id(error.errno),
            folder.in_words("reading a checkpoint", where, error),
        ]
    return None


def _in_words(session: Session, data: dict[str, Any]) -> str:
    reader = "read back by another rank" if session.place.world_size > 1 else "read back"
    return f"{data['bytes'] >> 10} KiB saved, {reader}, flipped bit refused"


def _refuses_damage(root: Path) -> bool:
    """Whether a copy with one flipped bit is refused, and by the name of the file."""
    committed = Path(checkpoint.path(root, step=STEP))
    copied = root / "damaged" / committed.name
    shutil.copytree(str(committed), str(copied))
    flipped = flip_bit(copied)
    return [damage.file for damage in checkpoint.verify(copied.parent, step=STEP)] == [flipped]


def flip_bit(committed: Path) -> str:
    """In the file of rank 0's tensor; the file's name."""
    content = json.loads((committed / "manifest.json").read_text())
    name: str = content["tensors"][_name(0)]["records"][0][0]
    damaged = bytearray((committed / name).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (committed / name).write_bytes(damaged)
    return name


def _inject(session: Session, root: Path) -> None:
    if session.options.fault("flip-bit"):
        if session.place.rank == 0:
            flip_bit(Path(checkpoint.path(root, step=STEP)))
        session.exchange("checkpoint/bit flipped", None)


def _name(rank: int) -> str:
    return f"rank{rank:05d}"
