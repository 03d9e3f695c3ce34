"""When to wait, when to try again and when to give up, and why in a few words."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from provision.core.errors import Unreachable
from provision.core.mirrors import without_login

SILENCE_S = 30.0
TIMEOUT = "PROVISION_HTTP_TIMEOUT"  # seconds; instead of SILENCE_S
TRIES = 4
WORTH = 1 << 16  # bytes
SLOWEST = 1024  # bytes per second over SILENCE_S; slower counts as silent
ADVICE = "Check the network and the mirror, and run the same command again."
T = TypeVar("T")


def silence_s() -> float:
    """For how long a server may say nothing."""
    try:
        return max(0.1, float(os.environ.get(TIMEOUT, "") or SILENCE_S))
    except ValueError:
        return SILENCE_S


def pause_s(in_vain: int) -> float:
    """How long to wait before the next try: twice as long each time, and the impatient wait less."""
    return min(0.25, silence_s() / 8) * float(2**in_vain)


class TooSlow(OSError):
    """A server trickles."""


class Pace:
    """Gives up on a server that trickles: no read of its alone is silent, but a gigabyte would take weeks."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._since, self._bytes = time.monotonic(), 0

    def came(self, count: int) -> None:
        self._bytes += count
        passed = time.monotonic() - self._since
        if passed < self._window_s:
            return
        if self._bytes < SLOWEST * passed:
            raise TooSlow(f"only {self._bytes} bytes came within {passed:.0f} s")
        self._since, self._bytes = time.monotonic(), 0


def again(work: Callable[[], T], url: str, *, progress: Callable[[], int] = lambda: 0) -> T:
    """Do what a connection may spoil, again as often as it helps. progress: how many bytes there are; a try that brought WORTH of them
    was not in vain. Raises Unreachable."""
    in_vain, best = 0, progress()
    while True:
        try:
            return work()
        except _transport_errors() as error:
            worth_it = progress() - best >= WORTH and not isinstance(error, TooSlow)
            in_vain, best = 0 if worth_it else in_vain + 1, max(best, progress())
            if in_vain >= TRIES or isinstance(
                error, ValueError
            ):  # requests' errors about the address itself are ValueErrors
                raise Unreachable(
                    f"{without_login(url)} cannot be had: {_reason(error)}.", advice=ADVICE
                ) from error
            time.sleep(pause_s(in_vain))


def _transport_errors() -> tuple[type[BaseException], ...]:
    """What a connection may die of. urllib3's own come through where requests does not wrap them."""
    import requests
    import urllib3

    return requests.exceptions.RequestException, urllib3.exceptions.HTTPError, TooSlow


def _reason(error: BaseException) -> str:
    """The cause in a few words; requests wraps urllib3's errors, which wrap the system's."""
    from requests.exceptions import Timeout
    from urllib3.exceptions import IncompleteRead, NameResolutionError, TimeoutError

    chain = list(_chain(error))
    if any(isinstance(one, IncompleteRead) for one in chain):
        return "the connection ended before the file did"
    if any(isinstance(one, NameResolutionError) for one in chain):
        return "its host is not known"
    if slow := next((one for one in chain if isinstance(one, TooSlow)), None):
        return str(slow)
    if system := next(
        (one for one in reversed(chain) if isinstance(one, OSError) and one.strerror), None
    ):
        return str(system.strerror)
    if any(isinstance(one, (Timeout, TimeoutError)) for one in chain):
        return f"the server was silent for too long ({TIMEOUT} sets the seconds)"
    return without_login(" ".join(str(chain[-1]).split()).rstrip(".?"))[:300]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        inner = getattr(error, "reason", None) or next(
            (one for one in error.args if isinstance(one, BaseException)), None
        )
        error = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__
