"""How rattler is called: what it does in Rust threads is awaited to its end, its errors say their innermost cause, and what may be
different a moment later is tried again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from provision.adapters.http import TIMEOUT_VARIABLE, read_timeout_s, short_backoff
from provision.core.mirrors import without_login

if TYPE_CHECKING:
    import rattler.networking


T = TypeVar("T")

# rattler's client knows no deadline for silence, only one for a whole request. Repodata is megabytes: it gets five times as long as a
# server may be silent.
WHOLE_REQUEST = 5
# rattler tries again by itself, but not for all that may pass (an end in the middle of repodata: tried); we do for the rest.
RATTLERS_TRIES = 1
# Words of reqwest and hyper (py-rattler 0.28) for an answer that is none, and of those the ones for what may pass.
MAY_PASS = (
    "error decoding response body",
    "request or response body error",
    "connection closed",
    "connection reset",
    "server error",
)
MAY_NOT = ("error sending request", "http status client error", "404", "not found")
PAST_THE_DEADLINE = "operation timed out"


def run(work: Coroutine[Any, Any, T]) -> T:
    import asyncio  # 25 ms, and many a command asks rattler nothing

    return asyncio.run(work)


def client(*, whole: bool) -> rattler.networking.Client:
    """rattler's usual client, which tries again by itself where a request fails at its beginning. whole: with a deadline for each
    request; where packages are fetched, somebody must watch."""
    from rattler.networking import Client

    deadline_s = max(1, round(read_timeout_s() * WHOLE_REQUEST)) if whole else None
    return Client.default_client(max_retries=RATTLERS_TRIES, timeout=deadline_s)


def unanswered_by(error: BaseException) -> bool:
    """Whether an error is that somebody did not answer, or not as it should."""
    return any(words in str(error).lower() for words in (*MAY_PASS, *MAY_NOT, PAST_THE_DEADLINE))


def passing(error: BaseException) -> bool:
    """Whether to try again may help: not after a deadline, which would pass again."""
    text = str(error).lower()
    return any(words in text for words in MAY_PASS) and PAST_THE_DEADLINE not in text


def again(
    work: Callable[[], T],
    kind: type[Exception],
    may_pass: Callable[[BaseException], bool] = passing,
) -> T:
    """Do what a connection may spoil in the middle, again as often as fetch does."""
    backoff = short_backoff()
    while True:
        try:
            return work()
        except kind as error:
            backoff.count_failure()
            if backoff.is_exhausted or not may_pass(error):
                raise
            backoff.wait()


def what_to_do(error: BaseException) -> str:
    """About a channel that did not answer."""
    if PAST_THE_DEADLINE in str(error).lower():
        return f"{TIMEOUT_VARIABLE}, in seconds, gives a slow network longer (now {read_timeout_s():.0f}); or name a mirror with --mirror."
    return "Check the network, or name a mirror with --mirror."


def last_cause(error: BaseException) -> str:
    """rattler prints a chain of causes, the innermost last: that is the one a person can act on."""
    lines = [line.strip() for line in told(error).splitlines() if line.strip()]
    return lines[-1].removeprefix("Caused by: ") if lines else type(error).__name__


def told(error: BaseException) -> str:
    """All that rattler says, without a mirror's password."""
    return without_login(str(error))
