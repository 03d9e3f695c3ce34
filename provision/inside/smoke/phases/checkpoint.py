"""Phase checkpoint: written by all ranks, renamed in, read back by another rank, equal; a flipped bit is refused."""

from __future__ import annotations

import io
import secrets
import shutil
import time
from typing import TYPE_CHECKING, Any, Dict

from ...checkpoint import commit, manifest, read
from ...ranks import Ranks
from .. import folder, values
from ..outcome import Finding, Outcome, fold, united

if TYPE_CHECKING:
    from collections.abc import ItemsView, Sequence
    from pathlib import Path

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
    """The same outcome on every rank: a failed save is raised on all, and what each read is exchanged."""
    started = time.monotonic()
    try:
        committed = commit.save(root, STEP, _Shard(session), _ranks(session))
    except commit.NotCommitted as error:
        name = folder.finding_id(error.errno) if error.errno else "checkpoint-failed"
        message = f"a checkpoint in {session.options.checkpoint_dir} was not written: {error.problem.replace(str(root), root.name)}"
        return Outcome(findings=(Finding(name, message, error.ranks),), broken=True)
    saved_s = time.monotonic() - started
    _inject(session, committed)
    said = session.exchange("checkpoint/read", _read(session, root))
    findings = united([Finding(problem[0], problem[1], (rank,)) for rank, (problem, _) in enumerate(said) if problem])
    return Outcome(_in_words(session, said[0][1]), findings, {**said[0][1], "save_s": round(saved_s, 3)}, bool(findings))


def _ranks(session: Session) -> Ranks:
    return Ranks(session.place.rank, session.place.world_size, lambda name, said: session.exchange(f"checkpoint/{name}", said))


class _Shard(Dict[str, bytes]):
    """This rank's file; where the user rehearses a fault, the disk fails while it is taken to be written."""

    def __init__(self, session: Session) -> None:
        super().__init__({_file(session.place.rank): _written(session)})
        self._session = session

    def items(self) -> ItemsView[str, bytes]:  # type: ignore[override]
        folder.rehearse(self._session, *folder.REHEARSED)
        return super().items()


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


def _read(session: Session, root: Path) -> tuple[list[str] | None, dict[str, Any]]:
    """What is wrong, as id and message, and what was read."""
    where = session.options.checkpoint_dir
    try:
        checkpoint = read.load(root, STEP)
        data = {"bytes": sum(entry.size for entry in checkpoint.manifest.files), "files": len(checkpoint.manifest.files)}
        return _judge(session, checkpoint), data
    except manifest.DamagedFile as error:
        name = str(error.path).rpartition("/")[2]
        return ["checkpoint-damaged", f"{name} is damaged: {error.problem} (a checkpoint in {where})"], {}
    except manifest.CheckpointError as error:
        return ["checkpoint-failed", str(error)], {}
    except OSError as error:
        return [folder.finding_id(error.errno), folder.in_words("reading a checkpoint", where, error)], {}


def _judge(session: Session, checkpoint: read.Checkpoint) -> list[str] | None:
    """Reads the next rank's shard, then has a damaged copy refused."""
    import torch

    other = (session.place.rank + 1) % session.place.world_size
    found = torch.load(io.BytesIO(checkpoint.read(_file(other))), weights_only=True)
    if not torch.equal(found, _state(session, other)):
        return ["checkpoint-damaged", f"{_file(other)} was read back, but it is not what was saved"]
    if session.place.rank == 0 and not _refuses_damage(checkpoint, _file(other)):
        return ["checkpoint-failed", "a copy with one flipped bit was read without an error"]
    return None


def _in_words(session: Session, data: dict[str, Any]) -> str:
    reader = "read back by another rank" if session.place.world_size > 1 else "read back"
    return f"{data['bytes'] >> 10} KiB saved, {reader}, flipped bit refused" if data else ""


def _refuses_damage(checkpoint: read.Checkpoint, name: str) -> bool:
    """Whether a copy with one flipped bit is refused, and by the name of the file."""
    copied = checkpoint.folder.with_name("damaged")
    copied.mkdir()
    for part in (manifest.NAME, name):
        shutil.copyfile(str(checkpoint.folder / part), str(copied / part))
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


def _inject(session: Session, committed: Path) -> None:
    if session.options.fault("flip-bit"):
        if session.place.rank == 0:
            flip_bit(committed / _file(0))
        session.exchange("checkpoint/bit flipped", None)


def _file(rank: int) -> str:
    return f"rank{rank:05d}.pt"
