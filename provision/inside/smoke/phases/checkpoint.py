"""Phase checkpoint: written by all ranks, renamed in, read back by another rank, equal; a flipped bit is refused."""

from __future__ import annotations

import io
import shutil
import time
from typing import TYPE_CHECKING

from ...checkpoint import commit, manifest, read
from .. import values
from ..outcome import Outcome, fold, found

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from ..session import Session

STEP = 1
ELEMENTS = 1 << 20
ELEMENTS_QUICK = 1 << 16


def run(session: Session) -> Outcome:
    root = session.options.checkpoint_dir / session.exchange("checkpoint folder", f"checkpoint-{time.time_ns()}")[0]
    try:
        outcome = _round_trip(session, root)
        session.exchange("checkpoint done", None)
    finally:
        if session.place.rank == 0:
            shutil.rmtree(str(root), ignore_errors=True)
    return outcome


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    return fold(outcomes)


def _round_trip(session: Session, root: Path) -> Outcome:
    """What went wrong on this rank is an outcome, not an exception: the others wait for it at the next exchange."""
    try:
        started = time.monotonic()
        folder = commit.save(root, STEP, {_file(session.place.rank): _written(session)}, _ranks(session))
        saved_s = time.monotonic() - started
        _inject(session, folder)
        return _judge(session, root, saved_s)
    except manifest.DamagedFile as error:
        return found("checkpoint-damaged", str(error), broken=True)
    except (manifest.CheckpointError, OSError) as error:
        return found("checkpoint-failed", str(error), broken=True)


def _ranks(session: Session) -> commit.Ranks:
    return commit.Ranks(session.place.rank, session.place.world_size, session.exchange)


def _written(session: Session) -> bytes:
    """This rank's shard, as torch itself writes a tensor."""
    import torch

    buffer = io.BytesIO()
    torch.save(_state(session, session.place.rank), buffer)
    return buffer.getvalue()


def _state(session: Session, rank: int) -> torch.Tensor:
    """What a rank saves; every rank can predict every other's."""
    import torch

    state = torch.empty(ELEMENTS_QUICK if session.options.quick else ELEMENTS, dtype=torch.float32)
    values.fill(state, values.key(session.options.seed, "checkpoint", rank))
    return state


def _judge(session: Session, root: Path, saved_s: float) -> Outcome:
    """Reads the next rank's shard, then has a damaged copy refused."""
    import torch

    other = (session.place.rank + 1) % session.place.world_size
    checkpoint = read.load(root, STEP)
    got = torch.load(io.BytesIO(checkpoint.read(_file(other))), weights_only=True)
    total = sum(entry.size for entry in checkpoint.manifest.files)
    data = {"bytes": total, "files": len(checkpoint.manifest.files), "save_s": round(saved_s, 3)}
    if not torch.equal(got, _state(session, other)):
        return found("checkpoint-damaged", f"the shard of rank {other} was read back, but it is not what rank {other} saved", data=data)
    if session.place.rank == 0 and not _refuses_damage(checkpoint, _file(other)):
        return found("checkpoint-damaged", "a copy with one flipped bit was read without an error", data=data)
    reader = "read back by another rank" if session.place.world_size > 1 else "read back"
    return Outcome(message=f"{total >> 10} KiB saved, {reader}, flipped bit refused", data=data)


def _refuses_damage(checkpoint: read.Checkpoint, name: str) -> bool:
    """Whether a copy with one flipped bit is refused, and by the name of the file."""
    copied = checkpoint.folder.with_name("damaged")
    shutil.copytree(str(checkpoint.folder), str(copied))
    flip_bit(copied / name)
    try:
        read.open_folder(copied).read(name)
    except manifest.DamagedFile as error:
        return name in str(error)
    return False


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _inject(session: Session, folder: Path) -> None:
    if session.options.fault("flip-bit"):
        if session.place.rank == 0:
            flip_bit(folder / _file(0))
        session.exchange("bit flipped", None)


def _file(rank: int) -> str:
    return f"rank{rank:05d}.pt"
