"""Whether a checkpoint fits, asked before anything is written; and what to do where it does not."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ..comm import collective
from ..comm.heartbeat import run_with_heartbeat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..comm.ranks import Ranks
    from .backends import Backend
    from .items import Item
    from .writer import Writer

# Of what is needed: folders, archives around the tensors, the manifest, and others who write too.
MARGIN = 1.1

ADVICE = {
    errno.ENOSPC: "the disk is full: free some space, keep fewer checkpoints (`prune`), or save elsewhere",
    errno.EDQUOT: "the quota of this user or group is used up: free some space, keep fewer checkpoints (`prune`), or ask for more",
    errno.EROFS: "the file system is mounted read-only, as some become after an error: see the kernel's messages",
    errno.ESTALE: "the file server no longer knows the folder: is it exported and mounted as before?",
}


def require(backend: Backend, writer: Writer, items: Sequence[Item], ranks: Ranks) -> None:
    """Raises RankFailed (ENOSPC) on every rank where the checkpoint does not fit.

    At first nothing is taken to be in the parent. Only if that does not fit, every piece is hashed to know what must be written.
    """
    seen = collective.run_on_all("checkpoint/free", ranks, backend.free)
    least = min((free for free in seen if free is not None), default=None)
    if least is None or _total("whole", sum(item.bytes for item in items), ranks) * MARGIN <= least:
        return
    measured = run_with_heartbeat("checkpoint/measure", ranks, lambda: writer.measure(items))
    need = sum(collective.run_on_all("checkpoint/changed", ranks, measured.result))
    if need * MARGIN > least:
        collective.run_on_all(
            "checkpoint/space", ranks, lambda: _refuse(backend, need, seen[ranks.rank])
        )


def _total(name: str, own: int, ranks: Ranks) -> int:
    return sum(collective.run_on_all(f"checkpoint/{name}", ranks, lambda: own))


def _refuse(backend: Backend, need: int, free: int | None) -> None:
    """On the ranks that see too little."""
    if free is None or need * MARGIN <= free:
        return
    text = f"{need} bytes are to be written, a tenth more is asked for, and {free} are free"
    raise OSError(errno.ENOSPC, text, backend.root)
