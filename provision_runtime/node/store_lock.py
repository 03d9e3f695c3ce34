"""Who works in a store: one process at a time by a lock, one run of an environment by a lease."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .commands import is_caller_gone
from .errors import NodeError
from .store import Store
from .store_access import ensure_folders, open_file, require_safe
from .store_files import read_json, remove_file, write_json

if TYPE_CHECKING:
    from .results import Texts

# Another action of the same run may still be at work: its caller died, and it is about to see that.
LOCK_WAIT_S = 30.0
LOCK_POLL_S = 0.2
# A run that was killed leaves its lease. Other hosts take it for dead after this time; the host
# that it ran on sees at once that it is gone.
LEASE_S = 1800.0


@contextlib.contextmanager
def locked(store: Store, name: str, run: Texts) -> Iterator[None]:
    """Work in the store alone, as a part of this run.

    run: `id`; `source`, the host and folder that it runs from, where only one run of an environment
    is at work at a time; and `by`, as a person reads it. Raises NodeError (in-use, unsafe-store).
    """
    # The user's umask decides nothing here.
    before = os.umask(0o002 if store.trusted_group else 0o022)
    descriptor = None
    try:
        ensure_folders(store)
        require_safe(store)
        descriptor = open_file(store, store.lock, os.O_RDWR | os.O_CREAT)
        _wait_for_lock(descriptor, store)
        lease = read_json(store.lease(name))
        if lease is not None and lease["id"] != run["id"] and lease["source"] != run["source"]:
            age_s = time.time() - lease["at"]
            if 0 <= age_s < LEASE_S:
                raise NodeError(
                    "in-use",
                    f"{lease['by']} is shipping {name} here (last seen {age_s / 60:.0f} min ago; "
                    f"taken for dead after {LEASE_S / 60:.0f} min)",
                )
        write_json(store.lease(name), {**run, "at": time.time()})
        yield
    finally:
        os.umask(before)
        if descriptor is not None:
            os.close(descriptor)


def _wait_for_lock(descriptor: int, store: Store) -> None:
    end = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise NodeError("in-use", f"another process works in {store.path}") from None
            time.sleep(LOCK_POLL_S)
        except OSError:
            # A file system without locks. The lease still keeps other runs out.
            return


def release(path: str, name: str, run: Texts) -> dict[str, object]:
    """End a run here: another may begin."""
    store = Store(path, run)
    require_safe(store)
    lease = read_json(store.lease(name))
    if lease is not None and lease["id"] == run["id"]:
        remove_file(store.lease(name))
    return {}


def require_caller() -> None:
    """Raise NodeError (killed) if the caller is gone: then the lock must not stay with us."""
    if is_caller_gone():
        raise NodeError("killed", "the caller is gone")
