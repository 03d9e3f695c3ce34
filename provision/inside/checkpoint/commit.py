"""Making a checkpoint: every rank writes its files beside the final name, one rename shows them all.

Owns the order of the steps. The ranks meet through a callable, so it serves any store; nothing collective is called.
"""

from __future__ import annotations

import secrets
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .. import fs
from . import manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Ranks:
    """This rank, and how it meets the others.

    `exchange(name, payload)` returns every rank's payload, in rank order, on every rank, and raises where a rank is
    missing. All ranks call it in the same order.
    """

    rank: int
    world_size: int
    exchange: Callable[[str, Any], list[Any]]


def folder_name(step: int) -> str:
    return f"step-{step:012d}"


def save(root: Path, step: int, files: Mapping[str, bytes], ranks: Ranks, deadline_s: float = 30.0) -> Path:
    """Commit one checkpoint made of every rank's files; returns its folder.

    After return it is whole and durable. A failure on any rank fails on all of them and leaves nothing visible; only
    the sync of the parent folder comes after the rename, and if that fails the checkpoint stays. A step that exists is
    refused, never overwritten.
    """
    final = root / folder_name(step)
    temporary = _open_folder(root, final, ranks)
    entries, problem = _write_shard(temporary, files, ranks.rank, deadline_s)
    shards = ranks.exchange("checkpoint/shards", {"entries": entries, "problem": problem})
    problem = _first_problem(shards)
    if problem is None and ranks.rank == 0:
        problem = _publish(temporary, final, manifest.Manifest(step, ranks.world_size, _merge(shards)))
    outcome = ranks.exchange("checkpoint/published", problem)[0] or _first_problem(shards)
    if outcome is not None:
        _abandon(temporary, ranks.rank)
        raise manifest.CheckpointError(f"step {step} was not committed: {outcome}")
    fs.wait_until_visible(final, deadline_s)
    return final


def _open_folder(root: Path, final: Path, ranks: Ranks) -> Path:
    """One temporary folder for all ranks, made by rank 0."""
    temporary, problem = None, None
    if ranks.rank == 0:
        try:
            temporary = _make_temporary(root, final)
        except (OSError, manifest.CheckpointError) as error:
            problem = str(error)
    said = ranks.exchange("checkpoint/opened", {"name": temporary and temporary.name, "problem": problem})[0]
    if said["problem"] is not None:
        raise manifest.CheckpointError(said["problem"])
    return root / str(said["name"])


def _make_temporary(root: Path, final: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    if final.exists():
        raise manifest.CheckpointError(f"{final} exists already, and a committed step is never overwritten")
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(8)}.tmp")
    temporary.mkdir()
    return temporary


def _write_shard(folder: Path, files: Mapping[str, bytes], rank: int, deadline_s: float) -> tuple[list[dict[str, Any]], str | None]:
    """The entries of what was written, or why it could not be; raising here would leave the other ranks waiting."""
    try:
        fs.wait_until_visible(folder, deadline_s)
        for name, content in files.items():
            _refuse_bad_name(name)
            fs.write_synced(folder / name, content)
        return [asdict(manifest.describe(name, content, rank)) for name, content in files.items()], None
    except (OSError, manifest.CheckpointError) as error:
        return [], f"rank {rank}: {error}"


def _refuse_bad_name(name: str) -> None:
    if name in ("", ".", "..", manifest.NAME) or "/" in name or "\0" in name:
        raise manifest.CheckpointError(f"{name!r} cannot be a file of a checkpoint: a plain name is needed")


def _first_problem(shards: list[dict[str, Any]]) -> str | None:
    return next((shard["problem"] for shard in shards if shard["problem"] is not None), None)


def _merge(shards: list[dict[str, Any]]) -> list[manifest.FileEntry]:
    entries = [manifest.FileEntry(**entry) for shard in shards for entry in shard["entries"]]
    return sorted(entries, key=lambda entry: entry.name)


def _publish(temporary: Path, final: Path, content: manifest.Manifest) -> str | None:
    """Manifest, then the folder's names, then the rename, then the parent: each durable before the next."""
    try:
        fs.write_synced(temporary / manifest.NAME, manifest.dumps(content))
        fs.fsync_directory(temporary)
        temporary.rename(final)
        fs.fsync_directory(final.parent)
    except OSError as error:
        return str(error)
    return None


def _abandon(temporary: Path, rank: int) -> None:
    if rank == 0:
        shutil.rmtree(temporary, ignore_errors=True)
