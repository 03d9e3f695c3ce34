"""Runs kubectl, and says in our errors why it did not answer."""

from __future__ import annotations

import re

from provision.core import process
from provision.core.errors import InvalidSpec, TimedOut, ToolFailed, ToolMissing, Unreachable

ANSWER_TIMEOUT_S = 60.0
# kubectl's own log, which repeats what its last line says.
_LOG_LINE = re.compile(r"[EW]\d{4} \d\d:\d\d:")
_UNREACHABLE = re.compile(
    r"refused|no such host|timed? ?out|unable to connect|TLS handshake|was the connection", re.I
)


def run_kubectl(
    arguments: list[str], context: str = "", namespace: str | None = None, *, advice: str = ""
) -> str:
    """What kubectl printed. advice: for an answer that refuses.

    Raises ToolMissing without kubectl, Unreachable if the API server does not answer, InvalidSpec
    for what it refuses.
    """
    command = ["kubectl"]
    if context:
        command += ["--context", context]
    if namespace:
        command += ["--namespace", namespace]
    command += [*arguments, f"--request-timeout={ANSWER_TIMEOUT_S:.0f}s"]
    try:
        return process.run(command, timeout_s=ANSWER_TIMEOUT_S + 5).stdout
    except ToolMissing as error:
        raise ToolMissing(
            "There is no `kubectl` on this machine.",
            advice="Install it, or run this where it is; `ssh:` nodes need none.",
        ) from error
    except TimedOut as error:
        raise Unreachable(
            f"kubectl did not answer within {ANSWER_TIMEOUT_S:.0f} s.",
            advice="`kubectl cluster-info` says whether the API server is up.",
        ) from error
    except ToolFailed as error:
        lines = [line.strip() for line in error.tail.splitlines() if line.strip()]
        lines = [line for line in lines if not _LOG_LINE.match(line)] or lines[-1:]
        message = "; ".join(lines) or f"status {error.status}"
        if _UNREACHABLE.search(message):
            raise Unreachable(
                f"The Kubernetes API server does not answer: {message}",
                advice="`kubectl cluster-info` says whether it is up; `context:` in nodes.yml "
                "chooses another one.",
            ) from error
        raise InvalidSpec(f"Kubernetes refused: {message}", advice=advice) from error
