"""What the store of this node holds, what happened to it, and what may go."""

from __future__ import annotations

import contextlib
import os

from . import store as stores
from .activation import prune_parts, remove_unused
from .install import processes_in
from .results import (
    IS_ACTIVE,
    RemovedEnvironments,
    StoreContents,
    StoredEnvironment,
    StoreLog,
    Texts,
)
from .store import Store
from .store_journal import journal_events
from .store_lock import locked, release

# The last events of a store that its log returns.
LOG_EVENTS = 1000


def contents(path: str) -> StoreContents:
    """All environments of a store, and its disk. Nothing was shipped yet where there is none. Changes
    nothing."""
    store, existing = Store(path), path
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    status = os.statvfs(existing)
    parts = [store.join("staging", f"{part}.part") for part in store.files("staging", ".part")]
    return {
        "environments": [_environment(store, key) for key in _keys(store)],
        "unfinished_bytes": sum(os.stat(part).st_size for part in parts),
        "free_bytes": status.f_bavail * status.f_frsize,
        "total_bytes": status.f_blocks * status.f_frsize,
    }


def _keys(store: Store) -> list[str]:
    return sorted({*store.files("images", ".json"), *store.files("envs", ".installed")})


def _environment(store: Store, key: str) -> StoredEnvironment:
    pack, directory = stores.find_pack(store, key), store.environment(key)
    method = stores.installed_method(store, pack) if pack else None
    name = stores.name_of(key)
    state = "unmounted" if os.path.exists(store.installed(key)) else "staged"
    if method is not None:
        state = "active" if stores.active_key(store, name) == key else "installed"
    image_bytes, last_read = 0, 0.0
    if pack is not None and os.path.exists(store.image(pack)):
        status = os.stat(store.image(pack))
        image_bytes, last_read = status.st_blocks * 512, status.st_atime
    tree_bytes = 0
    if method == "tree":
        last_read = os.stat(store.python(key)).st_atime
        for folder, _, files in os.walk(directory):
            tree_bytes += (
                sum(os.lstat(os.path.join(folder, file)).st_blocks for file in files) * 512
            )
    return {
        "name": name,
        "key": key,
        "state": state,
        "method": method,
        "image_bytes": image_bytes,
        "tree_bytes": tree_bytes,
        "last_read": last_read,
        "processes": len(processes_in(directory)) if method else 0,
    }


def log(path: str, name: str) -> StoreLog:
    """The last events of a store, oldest first; name: of one environment, or empty."""
    events = journal_events(Store(path))
    chosen = [event for event in events if name in ("", event.get("name"))]
    return {"events": chosen[-LOG_EVENTS:]}


def remove(
    path: str,
    name: str,
    keys: list[str],
    active_too: bool,
    dry_run: bool,
    run: Texts,
) -> RemovedEnvironments:
    """Remove environments of a name, and what was left of transfers: these keys, or all if none are
    named. Those that processes use stay, and the active one, without active_too.

    dry_run: change nothing. Raises NodeError (in-use, unsafe-store).
    """
    store = Store(path, run)
    result: RemovedEnvironments = {"removed": [], "retained": {}}
    if not os.path.isdir(path):
        return result
    with contextlib.nullcontext() if dry_run else locked(store, name, run):
        active = stores.active_key(store, name)
        present = [key for key in _keys(store) if stores.name_of(key) == name]
        chosen = [key for key in present if not keys or key in keys]
        if active in chosen and not active_too:
            chosen.remove(active)
            result["retained"][active] = IS_ACTIVE
        result["removed"], in_use = remove_unused(store, name, chosen, run, dry_run)
        result["retained"].update(in_use)
        if not dry_run:
            prune_parts(store, name, older_than_s=0.0)
            release(path, name, run)
    return result
