"""`sbcast`: a file to all nodes of the current allocation, passed on by Slurm's own daemons."""

from __future__ import annotations

from pathlib import Path

from provision.core.process import run

FANOUT = 8  # the most that sbcast takes


def broadcast(source: Path, destination: str, timeout_s: float) -> None:
    """Copy a file to the same path on every node of the allocation, whose folder must exist.

    Raises ToolMissing, ToolFailed (some nodes may have it), TimedOut.
    """
    run(
        ["sbcast", "--force", f"--fanout={FANOUT}", source, destination],
        timeout_s=timeout_s,
    )
