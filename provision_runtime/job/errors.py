"""Why a job does not start, or ends, on this node."""

from __future__ import annotations


class JobError(Exception):
    """The job cannot go on; the message names the node and the reason.

    is_remote: another node raised it, and has the message in its log.
    """

    def __init__(self, message: str, *, is_remote: bool = False) -> None:
        super().__init__(message)
        self.is_remote = is_remote


class Stopped(Exception):
    """A signal asked the job to stop before its ranks ran."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number
