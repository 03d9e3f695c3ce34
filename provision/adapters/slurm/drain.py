"""Taking a node out of service: no new jobs start there; running ones go on."""

from __future__ import annotations

from provision.core import process
from provision.core.errors import TimedOut, ToolFailed

ANSWER_TIMEOUT_S = 60.0


def drain(node: str, reason: str) -> str:
    """Drain a node with a reason, which sinfo -R shows. Returns why it could not be drained; empty
    if it was."""
    command = ["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"]
    try:
        process.run(command, timeout_s=ANSWER_TIMEOUT_S)
    except ToolFailed as error:
        lines = [line for line in error.tail.splitlines() if line.strip()]
        return lines[-1] if lines else f"scontrol ended with status {error.status}"
    except TimedOut:
        return "scontrol did not answer"
    return ""
