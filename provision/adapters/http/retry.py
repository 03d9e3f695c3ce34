"""How long to wait for a server, when to retry and when to give up; and a short reason for
errors."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from provision.core.credentials import without_credentials
from provision.core.errors import Unreachable

READ_TIMEOUT_S = 30.0
TIMEOUT_VARIABLE = "PROVISION_HTTP_TIMEOUT"  # seconds, instead of READ_TIMEOUT_S
TRIES = 4
SLOWEST_BYTES_PER_S = 1024  # on average over READ_TIMEOUT_S; slower counts as silent
ADVICE = "Check the network and the mirror, and run the same command again."
T = TypeVar("T")


def read_timeout_s() -> float:
    """How long a server may be silent."""
    try:
        return max(0.1, float(os.environ.get(TIMEOUT_VARIABLE, "") or READ_TIMEOUT_S))
    except ValueError:
        return READ_TIMEOUT_S


class Backoff:
    """Counts failures in a row, and waits twice as long after each."""

    def __init__(self, tries: int, first_pause_s: float, longest_pause_s: float = 30.0) -> None:
        self._tries = tries
        self._first_pause_s, self._longest_pause_s = first_pause_s, longest_pause_s
        self._failures = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether no try is left."""
        return self._failures >= self._tries

    def count_failure(self) -> None:
        self._failures += 1

    def wait(self, retry_after: str = "") -> None:
        """Sleep before the next try; for as long as a server's Retry-After header says, where it
        can be read."""
        pause_s = self._first_pause_s * 2 ** max(self._failures - 1, 0)
        if retry_after:
            from urllib3.exceptions import InvalidHeader
            from urllib3.util import Retry

            with suppress(InvalidHeader, ValueError, OverflowError):
                pause_s = Retry().parse_retry_after(retry_after)
        time.sleep(min(self._longest_pause_s, pause_s))


class TooSlow(OSError):
    """A server trickles."""


class MinimumRate:
    """Gives up on a server that trickles: no single read times out, but a gigabyte would take
    weeks."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._start, self._bytes = time.monotonic(), 0

    def received(self, count: int) -> None:
        """Count bytes. Raises TooSlow if the past window brought too few."""
        self._bytes += count
        passed_s = time.monotonic() - self._start
        if passed_s < self._window_s:
            return
        if self._bytes < SLOWEST_BYTES_PER_S * passed_s:
            raise TooSlow(f"only {self._bytes} bytes came within {passed_s:.0f} s")
        self._start, self._bytes = time.monotonic(), 0


def retry(
    work: Callable[[], T],
    errors: type[Exception] | tuple[type[Exception], ...],
    may_pass: Callable[[Exception], bool],
) -> T:
    """Do network work, and repeat it after errors that may pass. Raises the last error."""
    # A short read timeout also makes the pauses shorter.
    backoff = Backoff(TRIES, first_pause_s=min(0.5, read_timeout_s() / 4))
    while True:
        try:
            return work()
        except errors as error:
            backoff.count_failure()
            if backoff.is_exhausted or not may_pass(error):
                raise
            backoff.wait()


def retry_request(work: Callable[[], T], url: str) -> T:
    """Do work with requests, and repeat it after a broken connection. Raises Unreachable when no try
    is left."""
    import requests
    import urllib3

    # urllib3's own errors come through where requests does not wrap them.
    errors = (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, TooSlow)
    try:
        # requests' errors about the URL itself are ValueErrors: a retry cannot help.
        return retry(work, errors, lambda error: not isinstance(error, ValueError))
    except errors as error:
        raise Unreachable(
            f"{url} could not be fetched: {_reason(error)}.", advice=ADVICE
        ) from error


def _reason(error: BaseException) -> str:
    """The cause in short; requests wraps urllib3's errors, which wrap the system's."""
    from requests.exceptions import Timeout
    from urllib3.exceptions import IncompleteRead, NameResolutionError, TimeoutError

    chain = list(_causes(error))
    for cause in chain:
        if isinstance(cause, IncompleteRead):
            return "the connection ended before the file did"
        if isinstance(cause, NameResolutionError):
            return "its host is not known"
        if isinstance(cause, TooSlow):
            return str(cause)
    for cause in reversed(chain):
        if isinstance(cause, OSError) and cause.strerror:
            return str(cause.strerror)
    if any(isinstance(cause, (Timeout, TimeoutError)) for cause in chain):
        return f"the server was silent for too long ({TIMEOUT_VARIABLE} sets the seconds)"
    message = " ".join(str(chain[-1]).split()).rstrip(".?")
    return without_credentials(message)[:300]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what caused it, outermost first."""
    while error is not None:
        yield error
        inner = getattr(error, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next((arg for arg in error.args if isinstance(arg, BaseException)), None)
        error = inner or error.__cause__ or error.__context__
