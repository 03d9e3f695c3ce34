"""How rattler is called: its Rust threads are awaited to their end, its errors reduced to their
innermost cause, and what a connection may spoil is retried."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from provision.adapters.http import TIMEOUT_VARIABLE, read_timeout_s, short_backoff
from provision.core.mirrors import without_login

if TYPE_CHECKING:
    import rattler.networking

T = TypeVar("T")

# rattler's client knows no timeout for silence, only one for a whole request. Repodata is
# megabytes: it gets five times as long as a server may be silent.
REQUEST_TIMEOUTS = 5
# rattler retries by itself, but not every error that may pass (an end in the middle of repodata:
# tried); we retry the rest.
RATTLER_RETRIES = 1
# Phrases of reqwest and hyper (py-rattler 0.28) for a request that failed: first those of errors
# that may pass.
PASSING_ERRORS = (
    "error decoding response body",
    "request or response body error",
    "connection closed",
    "connection reset",
    "server error",
)
LASTING_ERRORS = ("error sending request", "http status client error", "404", "not found")
TIMED_OUT = "operation timed out"


def run(work: Coroutine[Any, Any, T]) -> T:
    import asyncio  # 25 ms, and many a command does not need rattler

    return asyncio.run(work)


def new_client(*, has_deadline: bool) -> rattler.networking.Client:
    """rattler's usual client, which retries requests that fail at their beginning.

    has_deadline: each request ends after a time. Downloads of packages have none, and must be
    watched for stalls.
    """
    from rattler.networking import Client

    timeout_s = max(1, round(read_timeout_s() * REQUEST_TIMEOUTS)) if has_deadline else None
    return Client.default_client(max_retries=RATTLER_RETRIES, timeout=timeout_s)


def is_network_error(error: BaseException) -> bool:
    """Whether a server did not answer, or not as it should."""
    text = str(error).lower()
    return any(phrase in text for phrase in (*PASSING_ERRORS, *LASTING_ERRORS, TIMED_OUT))


def may_pass(error: BaseException) -> bool:
    """Whether a retry may help: not after a timeout, which would happen again."""
    text = str(error).lower()
    return TIMED_OUT not in text and any(phrase in text for phrase in PASSING_ERRORS)


def retry(
    work: Callable[[], T],
    kind: type[Exception],
    is_retried: Callable[[BaseException], bool] = may_pass,
) -> T:
    """Do work that a broken connection may spoil, as often as other downloads. Raises its last
    error."""
    backoff = short_backoff()
    while True:
        try:
            return work()
        except kind as error:
            backoff.count_failure()
            if backoff.is_exhausted or not is_retried(error):
                raise
            backoff.wait()


def network_advice(error: BaseException) -> str:
    """What to do about a channel that did not answer."""
    if TIMED_OUT in str(error).lower():
        return f"{TIMEOUT_VARIABLE}, in seconds, gives a slow network longer (now {read_timeout_s():.0f}); or name a mirror with --mirror."
    return "Check the network, or name a mirror with --mirror."


def innermost_cause(error: BaseException) -> str:
    """The last of the causes that rattler prints: the one that a person can act on."""
    lines = [line.strip() for line in details(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1].removeprefix("Caused by: ")


def details(error: BaseException) -> str:
    """rattler's whole message, without a mirror's password."""
    return without_login(str(error))
