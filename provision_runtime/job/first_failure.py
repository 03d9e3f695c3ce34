"""Which rank of a job failed first, and what to do about it. Pure.

A rank that loses another one fails too: Gloo and NCCL report a closed connection, and torchrun ends
the rest with SIGTERM. Such ends are consequences and never count as first, whichever of them torchrun
sees first.
"""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, List

from ..comm.rank_names import name_ranks
from ..hang.causes import CATALOG as CAUSES
from ..report.findings import CATALOG
from ..report.text import escape_line, format_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LONGEST_ERROR = 240
MAX_OTHERS = 3
# What Gloo, NCCL and torch's store report of a rank, or a node, that has ended or does not respond.
_CONSEQUENCES = re.compile(
    r"onnection (?:closed|reset|was likely closed)|Broken pipe|remote process exited|ncclRemoteError"
    r"|NCCL communicator was aborted|[Ww]atchdog caught collective operation timeout"
    r"|Timed out waiting \d+ ?ms for|pair closure|failed to recv|recvValue failed|Socket Timeout"
    r"|DistNetworkError|DistStoreError|[Ww]ait timeout after|failed to pass monitoredBarrier"
    r"|KeyboardInterrupt"
)
_ENDED_BY_OTHERS = (-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT)
_CRASHES = tuple(
    -int(getattr(signal, f"SIG{name}")) for name in ("SEGV", "ABRT", "ILL", "FPE", "BUS")
)
# Errors that have a finding, by what they print. The first that matches counts.
_KNOWN = (
    ("shm-full", r"/dev/shm|unable to (?:open|mmap|write).*shared memory|signal: Bus error"),
    ("gpu-memory-full", r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"),
    ("device-assert", r"device-side assert triggered"),
    ("gpu-memory-errors", r"uncorrectable ECC error"),
    ("arch-unsupported", r"no kernel image is available"),
    ("driver-old", r"CUDA driver version is insufficient|NVIDIA driver on your system is too old"),
    ("backend-unusable", r"package doesn't have (?:NCCL|GLOO|MPI) built in"),
    ("gradient-unused", r"Expected to have finished reduction in the prior iteration"),
    ("parameters-differ", r"params .*inconsistent|appears not to match sizes of the same param"),
    ("launch-in-init", r"bootstrapping phase"),
    ("makedirs-race", r"FileExistsError"),
    ("port-busy", r"EADDRINUSE|[Aa]ddress already in use"),
    ("master-unresolvable", r"gaierror|Name or service not known|name resolution"),
    ("numpy-abi", r"compiled using NumPy 1\.x|numpy\.dtype size changed"),
    ("nofile-small", r"Too many open files"),
    ("quota-full", r"Disk quota exceeded"),
    ("disk-full", r"No space left on device"),
    ("module-absent", r"ModuleNotFoundError"),
)
_FRAME = re.compile(r'^ *File "(?P<file>[^"<][^"]*)", line (?P<line>\d+)', re.MULTILINE)
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/")
_TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True)
class RankFailure:
    """How a rank ended. rank: -1 for a whole node that was lost. time: Unix time of the error, or
    when torchrun saw its end. status: the exit code, 0 if it did not fail; negative for a signal. error: `Type: message`,
    empty if it left none; chain: with the errors that caused it. site: `train.py:88`. oom_kills: of
    processes of its node's control group, since the job began there."""

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
        if _CONSEQUENCES.search(self.chain) or self.status in _ENDED_BY_OTHERS:
            return 2
        # NCCL's watchdog aborts the process, as a failed assertion of C++ does. A status without an
        # error is `sys.exit(3)`, or an error of any kind where the environment has no hook.
        return int(not self.chain and (self.status > 0 or self.status == -signal.SIGABRT))

    @property
    def advice_id(self) -> str:
        """Of the catalog of findings, or of causes; or nothing."""
        if self.distance > 1:
            return "early-exit"
        for known, pattern in _KNOWN:
            if re.search(pattern, self.chain):
                return known
        if self.oom_kills and "killed by signal: Killed" in self.chain:  # a DataLoader worker
            return "oom-killed"
        if self.status == -signal.SIGKILL:
            return "rank-oom-killed" if self.oom_kills else "rank-killed"
        return "rank-crashed" if self.status in _CRASHES else ""

    @property
    def likeness(self) -> tuple[str, str, int]:
        """Equal for errors that differ only in numbers, such as those of ranks and GPUs."""
        return re.sub(r"\d+", "#", self.error), self.site, self.status

    @property
    def text(self) -> str:
        """What happened to it."""
        if self.chain:
            text = self.error
        elif self.status >= 0:
            return f"status {self.status} without an error; see its lines above"
        else:
            text = signal.Signals(-self.status).name
            if self.oom_kills:
                text += f", as memory ran out ({format_count(self.oom_kills, 'kill')} in its group)"
        return f"{text}, {self.site}" if self.site else text


def read_failures(
    failures: Mapping[int, Any], node: str, *, oom_kills: int = 0, folder: str = ""
) -> List[RankFailure]:
    """The failures of a ChildFailedError of torch.

    Args:
        failures: torch's ProcessFailure of each rank. It has what `@record` wrote of the exception.
        folder: sites are relative to it.
    """
    rows = []
    for rank, failure in sorted(failures.items()):
        message = failure.error_file_data.get("message")
        error, traceback = "", ""
        if isinstance(message, dict):
            error = str(message.get("message", ""))
            traceback = str(message.get("extraInfo", {}).get("py_callstack", ""))
        rows.append(
            RankFailure(
                rank,
                node,
                float(failure.timestamp),
                failure.exitcode,
                error=_first_line(error),
                chain=_error_lines(traceback) or error,
                site=_site(traceback, folder),
                oom_kills=oom_kills,
            )
        )
    return rows


def summary(failures: Iterable[RankFailure], world_size: int, nodes: int) -> list[str]:
    """The last lines of a job's log: who failed first, why, and what to do. Empty without failures.

    Args:
        world_size: ranks of the job; 0 if unknown.
        nodes: of the job. With several, ranks are named with theirs.
    """
    rows = sorted(failures, key=lambda failure: (failure.distance, failure.time))
    ordered = [failure for failure in rows if failure.status]
    if not ordered:
        return []
    first = ordered[0]
    ended = [row for row in rows if not row.status and row.time <= first.time]
    causes = [failure for failure in ordered if failure.distance == first.distance]
    ranks = name_ranks([failure.rank for failure in causes if failure.likeness == first.likeness])
    alike = [failure for failure in causes if failure.likeness == first.likeness]
    name, clock = _name(first, nodes), _clock(first)
    if first.rank < 0:
        lines = [
            f"{name} is gone ({clock}): it, its network or the job's process there; all ranks ended "
            "because of it"
        ]
    elif first.distance > 1 and ended:
        left = name_ranks([row.rank for row in ended])
        lines = [
            f"{left} ended without an error ({_clock(ended[0])}), before the others: "
            f"{name} lost the connection ({clock}): {first.text}"
        ]
    elif first.distance > 1:
        lines = [
            f"no rank has an error of its own: {name} lost another first ({clock}): {first.text}"
        ]
    elif len(alike) > 1 and not first.error and first.distance == 1:
        lines = [f"{ranks} failed, which of them first is unknown ({clock}): {first.text}"]
    elif len(alike) > 1:
        lines = [f"{ranks} failed alike, {name} first ({clock}): {first.text}"]
    else:
        lines = [f"{name} failed first ({clock}): {first.text}"]
    rest = [failure for failure in causes if failure not in alike and first.distance == 0]
    others = world_size - len(alike) - len(rest) - len(ended)
    if others > 0 and first.rank >= 0 and first.distance < 2:
        lines[0] += f"; {format_count(others, 'other')} ended because of it"
    for failure in rest[:MAX_OTHERS]:
        lines.append(f"{_name(failure, nodes)} failed too ({_clock(failure)}): {failure.text}")
    if len(rest) > MAX_OTHERS:
        lines.append(f"and so did {len(rest) - MAX_OTHERS} more")
    for known in dict.fromkeys(failure.advice_id for failure in (first, *rest)):
        if known in CATALOG:
            rule = CATALOG[known]
            lines.append(f"[{known}] {rule.meaning}")
            lines += [f"    {text}" for text in (rule.advice, *rule.command.splitlines())]
        elif known:
            lines.append(f"[{known}] {CAUSES[known]}")
    return [escape_line(line) for line in lines]


def _name(failure: RankFailure, nodes: int) -> str:
    if failure.rank < 0:
        return failure.node
    return f"rank {failure.rank} on {failure.node}" if nodes > 1 else f"rank {failure.rank}"


def _clock(failure: RankFailure) -> str:
    return time.strftime("%H:%M:%S", time.localtime(failure.time))


def _first_line(error: str) -> str:
    """Without what follows the first line, and without C++'s stack."""
    line = error.strip().partition("\n")[0].rstrip(" :")
    return line if len(line) <= LONGEST_ERROR else f"{line[:LONGEST_ERROR]}..."


def _error_lines(traceback: str) -> str:
    """The errors of a traceback, those that led to the last one included, without their frames."""
    lines = [line for line in traceback.splitlines() if line and not line.startswith(" ")]
    return "\n".join(line for line in lines if line != _TRACEBACK)[:4096]


def _site(traceback: str, folder: str) -> str:
    """The innermost line of the user's own code, else of any, of the last error."""
    frames = list(_FRAME.finditer(traceback.rpartition(_TRACEBACK)[2]))
    user = [frame for frame in frames if not _LIBRARY.search(frame["file"])]
    if not frames:
        return ""
    frame = (user or frames)[-1]
    path = os.path.relpath(frame["file"], folder) if folder else frame["file"]
    return f"{frame['file'] if path.startswith('..') else path}:{frame['line']}"
