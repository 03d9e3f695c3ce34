"""How rattler is called: we wait for its Rust threads to end, reduce its errors to their innermost
cause, say which errors may pass, and end downloads that stall.

rattler itself waits forever on a server that has fallen silent (py-rattler 0.28: tried).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from provision.adapters.conda.logins import client_environment
from provision.adapters.http import (
    SLOWEST_BYTES_PER_S,
    TIMEOUT_VARIABLE,
    UNTRUSTED,
    UNTRUSTED_ADVICE,
    connection_variables,
    read_timeout_s,
)
from provision.core.credentials import without_credentials
from provision.core.paths import make_private_directory
from provision.core.system_errors import require_address_space

if TYPE_CHECKING:
    import rattler
    import rattler.networking

T = TypeVar("T")

CACHE_VARIABLE = "RATTLER_CACHE_DIR"

# rattler's client knows no timeout for silence, only one for a whole request. Repodata is
# megabytes: it gets five times as long as a server may be silent.
REQUEST_TIMEOUTS = 5
# rattler retries by itself, but not every error that may pass (an end in the middle of repodata:
# tried); we retry the rest.
RATTLER_RETRIES = 1
# Phrases of reqwest and hyper (py-rattler 0.28) for failed requests: transient errors first.
PASSING_ERRORS = (
    "error decoding response body",
    "request or response body error",
    "connection closed",
    "connection reset",
    "server error",
)
LASTING_ERRORS = ("error sending request", "http status client error", "404", "not found")
TIMED_OUT = "operation timed out"
# Watching downloads for stalls.
CHECK_S = 0.2
LEAST_WINDOW_S = 2.0  # rattler itself pauses this long between two retries
SETTLE_S = 0.5  # lets rattler's threads finish their last writes after a cancellation


def run(work: Coroutine[Any, Any, T]) -> T:
    import asyncio  # 25 ms, which commands without rattler need not spend

    return asyncio.run(work)


def new_client(*, has_deadline: bool) -> rattler.networking.Client:
    """rattler's usual client, which retries requests that fail at their beginning.

    has_deadline: each request ends after a time. Downloads of packages have none, and must be
    watched for stalls. rattler reads proxies and certificates when a client is made, under other
    names than pip and requests: they get these names.
    """
    from rattler.networking import Client

    from provision.adapters import uv

    require_address_space()
    timeout_s = max(1, round(read_timeout_s() * REQUEST_TIMEOUTS)) if has_deadline else None
    variables = connection_variables(uv.pip_settings(), os.environ)
    with client_environment(variables):
        return Client.default_client(max_retries=RATTLER_RETRIES, timeout=timeout_s)


def new_gateway() -> rattler.Gateway:
    """What reads the records of channels, and writes them to rattler's cache.

    A lock's hashes come from these records. So where rattler's cache does not exist yet, it is made
    before rattler makes it: nobody else may enter it, under any umask.
    """
    import rattler

    cache = repodata_cache(os.environ)
    if not cache.is_dir():
        make_private_directory(cache.parent)
        cache.mkdir(mode=0o700, exist_ok=True)
    return rattler.Gateway(cache_dir=cache, client=new_client(has_deadline=True))


def repodata_cache(environ: Mapping[str, str]) -> Path:
    """Where rattler itself, and what else is made of it, keep the records of channels."""
    from provision.core.settings import xdg_folder

    named = environ.get(CACHE_VARIABLE)
    return Path(named).absolute() if named else xdg_folder("CACHE") / "rattler" / "cache"


def is_network_error(error: BaseException) -> bool:
    """Whether a server did not answer, or answered with an error."""
    text = str(error).lower()
    return any(phrase in text for phrase in (*PASSING_ERRORS, *LASTING_ERRORS, TIMED_OUT))


def may_pass(error: BaseException) -> bool:
    """Whether a retry may help: not after a timeout, which would happen again."""
    text = str(error).lower()
    return TIMED_OUT not in text and any(phrase in text for phrase in PASSING_ERRORS)


def network_advice(error: BaseException) -> str:
    """What to do about a channel that did not answer."""
    if TIMED_OUT in str(error).lower():
        return (
            f"{TIMEOUT_VARIABLE}, in seconds, gives a slow network longer (now "
            f"{read_timeout_s():.0f}); or name a mirror with --mirror."
        )
    if UNTRUSTED in str(error):
        return UNTRUSTED_ADVICE
    return "Check the network, or name a mirror with --mirror."


def innermost_cause(error: BaseException) -> str:
    """The last cause that rattler prints: the one that a user can act on."""
    lines = [line.strip() for line in details(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1].removeprefix("Caused by: ")


def details(error: BaseException) -> str:
    """rattler's whole message, without credentials."""
    return without_credentials(str(error))


class Stalled(Exception):
    """A download received nothing for too long."""


class DownloadMonitor:
    """rattler's reporter. rattler calls it from its own threads, and only the methods that exist; a
    number that a method returns identifies that download in later calls."""

    def __init__(
        self,
        on_linked: Callable[[int], None],
        before_link: Callable[[str], None] = lambda name: None,
    ) -> None:
        """on_linked: gets the number of packages linked so far. before_link: gets the name of the
        package linked next."""
        self._on_linked, self._before_link = on_linked, before_link
        self._linked = 0
        self._lock = threading.Lock()
        self._names: dict[int, str] = {}
        self._received: dict[int, int] = {}  # by running download
        self._start_window()

    def _start_window(self) -> None:
        self._window_start, self._window_bytes = time.monotonic(), 0

    def on_populate_cache_start(self, operation: int, package_name: str) -> int:
        with self._lock:
            self._names[operation] = package_name
        return operation

    def on_download_start(self, cache_entry: int) -> int:
        with self._lock:
            if not self._received:
                self._start_window()
            self._received[cache_entry] = 0
        return cache_entry

    def on_download_progress(self, download_idx: int, progress: int, total: int | None) -> None:
        with self._lock:
            self._window_bytes += max(0, progress - self._received.get(download_idx, 0))
            self._received[download_idx] = progress

    def on_download_completed(self, download_idx: int) -> None:
        with self._lock:
            self._received.pop(download_idx, None)

    def on_link_start(self, operation: int, package_name: str) -> int:
        self._before_link(package_name)
        return operation

    def on_link_complete(self, index: int) -> None:
        with self._lock:
            self._linked += 1
        self._on_linked(self._linked)

    def stalled_packages(self, window_s: float) -> str:
        """The packages being downloaded, if the past window brought next to nothing; else an empty
        text."""
        with self._lock:
            passed_s = time.monotonic() - self._window_start
            if not self._received or passed_s < window_s:
                return ""
            is_stalled = self._window_bytes < SLOWEST_BYTES_PER_S * passed_s
            self._start_window()
            if not is_stalled:
                return ""
            return ", ".join(
                sorted(self._names.get(entry, "a package") for entry in self._received)
            )


async def await_progress(work: Coroutine[Any, Any, None], monitor: DownloadMonitor) -> None:
    """Await rattler's work. Raises Stalled."""
    import asyncio

    window_s = max(read_timeout_s(), LEAST_WINDOW_S)
    task = asyncio.ensure_future(work)
    while not (await asyncio.wait({task}, timeout=CHECK_S))[0]:
        if names := monitor.stalled_packages(window_s):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
            await asyncio.sleep(SETTLE_S)
            raise Stalled(f"{names}: the server was silent for {window_s:.0f} s")
    task.result()
