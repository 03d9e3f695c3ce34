"""Which rank of a job failed first, and what to do about it. Pure.

A rank that loses another one fails too: Gloo and NCCL report a closed connection, and torchrun ends
the rest with SIGTERM. Such ends are consequences and never count as first, whichever of them torchrun
sees first.
"""

from __future__ import annotations

import re
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..comm.rank_names import name_ranks
from ..dataclass import frozen
from ..report.findings import CATALOG, has_lost_peer, known_error
from ..report.text import escape_line, format_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..hang.causes import Cause

LONGEST_ERROR = 240
_ENDED_BY_OTHERS = (-signal.SIGTERM, -signal.SIGINT)
# These say how a rank ended, and not why.
VAGUE = ("", "rank-crashed", "rank-gone", "rank-failed", "early-exit")
_TRACEBACK = "Traceback (most recent call last):"


@frozen
class RankFailure:
    """How a rank ended. time: Unix time of the error, or
    when torchrun saw its end. status: the exit code, 0 if it did not fail; negative for a signal.
    error: `Type: message`, empty if it left none; chain: with the errors that caused it. site:
    `train.py:88`. oom_kills: of processes of its node's control group, since the job began there."""

    rank: int
    node: str
    time: float
    status: int = 1
    error: str = ""
    chain: str = ""
    site: str = ""
    oom_kills: int = 0

    @property
    def distance(self) -> int:
        """From the cause: 0 for an error of its own, 1 for what may be one, 2 for a consequence."""
        if has_lost_peer(self.chain) or self.status in _ENDED_BY_OTHERS:
            return 2
        # NCCL's watchdog aborts the process, as a failed assertion of C++ does. A status without an
        # error is `sys.exit(3)`, or an error of any kind where the environment has no hook.
        return int(not self.chain and (self.status > 0 or self.status == -signal.SIGABRT))

    @property
    def advice_id(self) -> str:
        """Of the catalog of findings; or nothing."""
        if self.distance > 1:
            return "early-exit"
        id = known_error(self.chain)
        if id == "worker-ended" and self.oom_kills:
            return "oom-killed"
        if id:
            return id
        if self.status == -signal.SIGKILL:
            return "rank-oom-killed" if self.oom_kills else "rank-killed"
        return "rank-crashed" if self.status < 0 and not self.chain else ""

    @property
    def likeness(self) -> tuple[str, str, int]:
        """Equal for errors that differ only in numbers, such as those of ranks and GPUs."""
        return re.sub(r"\d+", "#", self.error), self.site, self.status

    @property
    def text(self) -> str:
        """What happened to it."""
        if not self.chain and self.status >= 0:
            return f"status {self.status} without an error; see its lines above"
        text = self.error if self.chain else signal.Signals(-self.status).name
        return f"{text}, {self.site}" if self.site else text


def read_failure(rank: int, failure: Any, node: str) -> RankFailure:
    """How a rank ended by torch's ProcessFailure, which has what `@record` or the hook wrote of its
    exception."""
    status = failure.exitcode
    if status > 128 and status - 128 in set(signal.Signals):  # of a shell around the rank
        status = 128 - status
    row = RankFailure(rank, node, float(failure.timestamp), status)
    message = failure.error_file_data.get("message")
    if not isinstance(message, dict):
        return row
    traceback = message.get("extraInfo", {}).get("py_callstack", "")
    error = str(message.get("message", "")).strip()
    # The errors that led to the last one, too, without their frames.
    lines = [line for line in traceback.splitlines() if line != _TRACEBACK and line[:1].strip()]
    return replace(
        row,
        error=error.partition("\n")[0].rstrip(" :")[:LONGEST_ERROR],
        chain="\n".join([error, *lines])[:4096],
    )


def summary(
    failures: Iterable[RankFailure], world_size: int, nodes: int, cause: Cause | None = None
) -> list[str]:
    """The last lines of a job's log: who failed first, why, and what to do. Empty without failures.

    Args:
        world_size: ranks of the job; 0 if unknown.
        nodes: of the job. With several, ranks are named with theirs.
        cause: concluded from how all ranks ended. It is said where the first error has none.
    """
    rows = sorted(failures, key=lambda failure: (failure.distance, failure.time))
    failed = [row for row in rows if row.status]
    if not failed:
        return []
    first = failed[0]
    ended = [row for row in rows if not row.status and row.time <= first.time]
    same = [row for row in failed if row.likeness == first.likeness]
    ranks = name_ranks([row.rank for row in same])
    name = f"rank {first.rank} on {first.node}" if nodes > 1 else f"rank {first.rank}"
    what = f"({_clock(first)}): {first.text}"
    line = f"{name} failed first {what}"
    if first.distance > 1:
        line = f"no rank reported an error of its own: {name} lost another rank first {what}"
        if ended:
            left = name_ranks([row.rank for row in ended])
            line = f"{left} ended without an error ({_clock(ended[0])}): {name} lost it {what}"
    elif len(same) > 1:
        order = f"{name} first" if first.chain else "which of them first is unknown"
        line = f"{ranks} failed alike, {order} {what}"
    consequences = world_size - len(same) - len(ended)
    if consequences > 0 and first.distance < 2:
        line += f"; {format_count(consequences, 'other')} ended because of it"
    lines = [line]
    id = first.advice_id
    if cause and id in VAGUE and (cause.id == id or cause.id not in VAGUE):
        lines.append(f"[{cause.id}] {cause.message}")
        if cause.line:
            lines.append(f"    {cause.line.file}:{cause.line.line}: {cause.line.source}")
        lines.append(f"    {cause.advice}")
    elif id:
        lines += advice(id)
    return list(map(escape_line, lines))


def advice(id: str) -> list[str]:
    """What the catalog says of a finding."""
    return [f"[{id}] {CATALOG[id].meaning}", f"    {CATALOG[id].advice}"]


def _clock(failure: RankFailure) -> str:
    return time.strftime("%H:%M:%S", time.localtime(failure.time))
