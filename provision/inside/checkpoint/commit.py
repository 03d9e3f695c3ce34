"""Making a checkpoint: every rank writes its files beside the final name, one rename shows them all.

Owns the order of the steps. The ranks meet through a callable, so it serves any store; nothing collective is called.
"""

from __future__ import annotations

import errno
import secrets
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .. import fs
from . import manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..ranks import Ranks


class NotCommitted(manifest.CheckpointError):
    """No rank has the new checkpoint; `ranks` are those that failed, `errno` what the first of them was told (0: nothing)."""

    def __init__(self, step: int, failure: fs.RankFailed) -> None:
        super().__init__(f"step {step} was not committed: {failure}")
        self.ranks = failure.ranks
        self.errno = failure.errno or 0
        self.problem = f"{failure.strerror}: {failure.filename}" if failure.filename else str(failure.strerror)


def folder_name(step: int) -> str:
    return f"step-{step:012d}"


def save(root: Path, step: int, files: Mapping[str, bytes], ranks: Ranks, deadline_s: float = 30.0) -> Path:
    """Commit one checkpoint made of every rank's files; returns its folder.

    After return it is whole and durable. A failure on any rank is raised on all of them (NotCommitted, which names the
    ranks) and leaves nothing visible; only the sync of the parent folder and the others' sight of it come after the
    rename, and if they fail the checkpoint stays. A step that exists is refused, never overwritten.
    """
    final = root / folder_name(step)
    try:
        temporary = root / str(fs.decide("open checkpoint", ranks, lambda: _make_temporary(root, final).name))
        _fill(temporary, final, step, files, ranks, deadline_s)
        fs.each("see checkpoint", ranks, lambda: fs.wait_until_visible(final, deadline_s))
    except fs.RankFailed as error:
        raise NotCommitted(step, error) from error
    return final


def _make_temporary(root: Path, final: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    if final.exists():
        raise FileExistsError(errno.EEXIST, "exists already, and a committed step is never overwritten", str(final))
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(8)}.tmp")
    temporary.mkdir()
    return temporary


def _fill(temporary: Path, final: Path, step: int, files: Mapping[str, bytes], ranks: Ranks, deadline_s: float) -> None:
    """From the empty temporary folder to the final one, or to none."""
    try:
        shards = fs.each("write shards", ranks, lambda: _write_shard(temporary, files, ranks.rank, deadline_s))
        content = manifest.Manifest(step, ranks.world_size, _merge(shards))
        fs.decide("publish checkpoint", ranks, lambda: _publish(temporary, final, content))
    except BaseException:
        if ranks.rank == 0:
            shutil.rmtree(str(temporary), ignore_errors=True)
        raise


def _write_shard(folder: Path, files: Mapping[str, bytes], rank: int, deadline_s: float) -> list[dict[str, Any]]:
    fs.wait_until_visible(folder, deadline_s)
    for name, content in files.items():
        _refuse_bad_name(name)
        fs.write_synced(folder / name, content)
    return [asdict(manifest.describe(name, content, rank)) for name, content in files.items()]


def _refuse_bad_name(name: str) -> None:
    if name in ("", ".", "..", manifest.NAME) or "/" in name or "\0" in name:
        raise manifest.CheckpointError(f"{name!r} cannot be a file of a checkpoint: a plain name is needed")


def _merge(shards: list[list[dict[str, Any]]]) -> list[manifest.FileEntry]:
    entries = [manifest.FileEntry(**entry) for shard in shards for entry in shard]
    return sorted(entries, key=lambda entry: entry.name)


def _publish(temporary: Path, final: Path, content: manifest.Manifest) -> None:
    """Manifest, then the folder's names, then the rename, then the parent: each durable before the next."""
    fs.write_synced(temporary / manifest.NAME, manifest.dumps(content))
    fs.fsync_directory(temporary)
    temporary.rename(final)
    fs.fsync_directory(final.parent)
