"""Why a node could not do something: one registry of reasons, and how ssh, srun and the node
program word them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from provision.core.dataclass import frozen
from provision_runtime.report.text import escape_line

MESSAGE_LENGTH = 500


@frozen
class FailureReason:
    meaning: str
    advice: str
    is_unknown: bool = False
    is_transient: bool = False


@frozen
class NodeFailure:
    """What went wrong on one node.

    stage: what was being done (check, copy, verify, ...). reason: a key of REASONS. message: the
    tool's or system's own words, as one line of bounded length.
    """

    stage: str
    reason: str
    message: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", message_line(self.message))


def message_line(text: str) -> str:
    """A stranger's text as one line of bounded length. Texts that differ stay different."""
    text = escape_line(text)
    if len(text) <= MESSAGE_LENGTH:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    end = f"... ({len(text)} characters, sha256 {digest})"
    return text[: MESSAGE_LENGTH - len(end)] + end


_DATA = Path(__file__).with_name("data")
REASONS = {
    name: FailureReason(**row)
    for name, row in json.loads((_DATA / "failures.json").read_text(encoding="utf-8")).items()
}
# What ssh (OpenSSH 7 to 10) and the programs that it starts print -> reason. First match wins.
_SSH_TEXTS = json.loads((_DATA / "ssh_texts.json").read_text(encoding="utf-8"))
_SSH_FAILED = 255
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
# Slurm's daemon on the node does not start the step.
_SRUN_LAUNCH = r"(?m)^srun: error: (Task launch for|Unable to create step)"
# Lines of ssh, srun and login shells that explain nothing.
_NOISE = re.compile(
    r"^(Warning: Permanently added|@|\*\*|debug\d:"
    r"|srun: (Job step aborted|error: (Application launch failed|Timed out waiting|\S+: task)))"
)


def classify(status: int | None, stdout: str, stderr: str) -> tuple[str, str]:
    """The reason and message for a command that sent no reply, by its exit status (None: still
    running at the end of its time) and by what it printed."""
    message = _last_line(stderr) or _last_line(stdout) or "it printed nothing"
    if status is None:
        return "timed-out", _last_line(stderr) or "no answer within the time limit"
    if re.search(_SRUN_LAUNCH, stderr):
        return "no-slurmd", message
    if status == _SSH_FAILED:
        reason = _ssh_reason(stderr)
        # The last line that has the reason: ssh ends with the one that names the host.
        lines = [line for line in _lines(stderr) if reason and _ssh_reason(line) == reason]
        return reason or "connection-lost", message_line(lines[-1]) if lines else message
    if status in (_NOT_EXECUTABLE, _NOT_FOUND):
        return "no-python", message
    if status > 128:
        return "killed", f"signal {status - 128}; {message}"
    if re.search(r"account is currently not available|nologin", stdout + stderr):
        return "account-unusable", message
    return "bad-answer", f"status {status}; {message}"


def _ssh_reason(text: str) -> str | None:
    return next((reason for pattern, reason in _SSH_TEXTS if re.search(pattern, text)), None)


def _lines(text: str) -> list[str]:
    """Those that explain something."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not _NOISE.match(line)]


def _last_line(text: str) -> str:
    """Tools put their reason there."""
    lines = _lines(text)
    return message_line(lines[-1]) if lines else ""
