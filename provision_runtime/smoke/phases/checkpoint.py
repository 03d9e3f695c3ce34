"""Phase checkpoint: all ranks save, another rank loads, the values are equal, and a flipped bit is
detected."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import checkpoint
from ...checkpoint import manifest
from ...comm.collective import RankFailed
from ...comm.ranks import Ranks
from ...comm.store import RanksMissing
from ...report.text import format_bytes
from .. import fault_injection, test_values
from ..outcome import Finding, Outcome, merge_equal
from . import filesystem_findings

if TYPE_CHECKING:
    import torch

    from ..context import RankContext

STEP = 1
ELEMENTS = 1 << 20
ELEMENTS_QUICK = 1 << 16


def run(context: RankContext) -> Outcome:
    name = context.exchange("checkpoint/folder", f".provision-smoke-{secrets.token_hex(8)}")[0]
    root = context.options.folder / name
    context.temporary_folders.append(root)
    try:
        outcome = _round_trip(context, root)
    finally:
        context.remove_temporary_folders()
    context.exchange("checkpoint/cleared", None)
    return outcome


def _round_trip(context: RankContext, root: Path) -> Outcome:
    """The same outcome on every rank: a failed save or load raises on all ranks, and what each rank
    read is exchanged."""
    env = context.env
    ranks = Ranks(
        env.rank,
        env.world_size,
        lambda name, payload: context.exchange(f"checkpoint/{name}", payload),
    )
    state = {_name(env.rank): _state(context, env.rank)}
    try:
        saved = checkpoint.save(
            state,
            root,
            step=STEP,
            ranks=ranks,
            incremental=False,
            # An injected fault raises the disk's error while this rank saves.
            progress=lambda _: fault_injection.raise_folder_error(
                context, *fault_injection.FOLDER_ERRORS
            ),
        )
    except checkpoint.NotCommitted as error:
        _raise_if_missing(error)
        finding_id = (
            filesystem_findings.finding_id(error.errno) if error.errno else "checkpoint-failed"
        )
        problem = error.problem.replace(str(root), root.name)
        message = f"a checkpoint in {context.options.folder} was not written: {problem}"
        return Outcome(findings=(Finding(finding_id, message, error.ranks),), broken=True)
    if context.options.fault("flip-bit"):
        if env.rank == 0:
            flip_bit(Path(checkpoint.path(root, step=STEP)))
        context.exchange("checkpoint/bit flipped", None)
    problems = context.exchange("checkpoint/read", _read_problem(context, root, ranks))
    findings = [
        Finding(problem[0], problem[1], (rank,)) for rank, problem in enumerate(problems) if problem
    ]
    data = {"bytes": saved.bytes, "save_s": round(saved.seconds, 3)}
    if findings:
        return Outcome("", merge_equal(findings), data, broken=True)
    reader = "loaded by another rank" if env.world_size > 1 else "loaded"
    return Outcome(f"{format_bytes(saved.bytes)} saved, {reader}, flipped bit refused", (), data)


def _raise_if_missing(error: checkpoint.CheckpointError) -> None:
    if isinstance(error.__cause__, RanksMissing):
        raise error.__cause__ from None


def _state(context: RankContext, rank: int) -> torch.Tensor:
    """What a rank saves; every rank can predict it."""
    import torch

    elements = ELEMENTS_QUICK if context.options.quick else ELEMENTS
    state = torch.empty(elements, dtype=torch.float32)
    test_values.fill(state, test_values.key("checkpoint", rank))
    return state


def _read_problem(context: RankContext, root: Path, ranks: Ranks) -> list[str] | None:
    """Loads the next rank's tensor; rank 0 then also checks that a damaged copy is refused.

    Returns what is wrong, as finding id and message.
    """
    import torch

    folder = context.options.folder
    rank = context.env.rank
    other_rank = (rank + 1) % context.env.world_size
    expected = _state(context, other_rank)
    state: dict[str, Any] = {_name(other_rank): torch.zeros_like(expected)}
    try:
        checkpoint.load(state, root, step=STEP, ranks=ranks)
        if not torch.equal(state[_name(other_rank)], expected):
            message = f"the tensor of rank {other_rank} was loaded, but it is not what was saved"
            return ["checkpoint-damaged", message]
        if rank == 0 and not _refuses_damage(root):
            return ["checkpoint-failed", "a copy with one flipped bit was loaded without an error"]
    except checkpoint.DamagedFile as error:
        message = f"{Path(error.path).name} is damaged: {error.problem} (a checkpoint in {folder})"
        return ["checkpoint-damaged", message]
    except checkpoint.CheckpointError as error:
        _raise_if_missing(error)
        return ["checkpoint-failed", str(error)]
    except RankFailed as error:
        if rank not in error.ranks:  # the rank that failed reports it
            return None
        return [filesystem_findings.finding_id(error.errno), str(error)]
    except OSError as error:
        message = filesystem_findings.describe_error("reading a checkpoint", folder, error)
        return [filesystem_findings.finding_id(error.errno), message]
    return None


def _refuses_damage(root: Path) -> bool:
    """Whether verification of a copy with one flipped bit fails, and names the file."""
    committed = Path(checkpoint.path(root, step=STEP))
    copy = root / "damaged" / committed.name
    shutil.copytree(str(committed), str(copy))
    flipped = flip_bit(copy)
    return [damage.file for damage in checkpoint.verify(copy.parent, step=STEP)] == [flipped]


def flip_bit(committed: Path) -> str:
    """Flips one bit in the file of rank 0's tensor; returns the file's name."""
    path = committed / "manifest.json"
    name = manifest.loads(path.read_bytes(), path).tensors[_name(0)].records[0].file
    content = bytearray((committed / name).read_bytes())
    content[len(content) // 2] ^= 1
    (committed / name).write_bytes(content)
    return name


def _name(rank: int) -> str:
    return f"rank{rank:05d}"
