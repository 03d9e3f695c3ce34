"""Which environment of the store is active: switched by one rename, the last ones kept."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from . import store as stores
from .errors import NodeError
from .install import remove_environment
from .store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

KEPT_ENVIRONMENTS = 3
# An image that nobody went on receiving for this time is removed.
PARTS_KEPT_S = 7 * 86400.0


def activate(
    path: str, name: str, key: str, run: Mapping[str, str], is_shared: bool = False
) -> dict[str, Any]:
    """Make an installed environment the active one, and remove those that are no longer kept.

    is_shared: other nodes use this store too, and jobs there cannot be seen: nothing is removed.

    Running jobs stay in the environment that they started in, because they start in `envs/KEY`.
    Raises NodeError (not-installed, unsafe-store).
    """
    store = Store(path, run)
    with stores.locked(store, name, run):
        previous = stores.active_key(store, name)
        if not is_usable(store, key):
            raise NodeError("not-installed", f"{store.environment(key)} is not there")
        stores.require_safe_environment(store, key)
        if previous != key:
            _replace_link(store, name, key)
            stores.append_journal(store, "activated", run, name=name, key=key, previous=previous)
        removed, in_use = ([], []) if is_shared else prune(store, name, run)
        stores.release(path, name, run)
    return {"active": key, "previous": previous, "removed": removed, "in_use": in_use}


def is_usable(store: Store, key: str) -> bool:
    """Whether an environment was installed, and is still mounted if it was mounted."""
    if stores.read_json(store.installed(key)) is None:
        return False
    return os.path.isdir(os.path.join(store.environment(key), "bin"))


def _replace_link(store: Store, name: str, key: str) -> None:
    staged = os.path.join(store.path, "staging", f"{name}.link")
    stores.remove_file(staged)
    os.symlink(os.path.join("envs", key), staged)
    os.replace(staged, store.link(name))
    stores.sync_directory(store.path)


def history(path: str, name: str) -> dict[str, Any]:
    """The active environment of this name, the one that was active before it, and all that are
    installed here."""
    store = Store(path)
    active = stores.active_key(store, name)
    installed = stores.installed_keys(store, name)
    previous = None
    for key in _activated_keys(stores.read_journal(store, name)):
        if key != active and key in installed:
            previous = key
            break
    return {"active": active, "previous": previous, "installed": installed}


def _activated_keys(events: list[dict[str, Any]]) -> list[str]:
    """All keys that were ever active, the latest first, each once."""
    keys = [event["key"] for event in events if event["event"] == "activated"]
    return list(dict.fromkeys(reversed(keys)))


def prune(store: Store, name: str, run: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Remove the environments of this name that are no longer kept.

    Kept: those that were active last, the newest of those that were never active (staged for
    later), and what the journal does not know. Returns what was removed, and what should be but
    stays because processes use it.
    """
    events = stores.read_journal(store, name)
    activated = _activated_keys(events)
    staged = [event["key"] for event in events if event["event"] == "installed"]
    staged = [key for key in reversed(staged) if key not in activated]
    retained = {stores.active_key(store, name), *activated[:KEPT_ENVIRONMENTS], *staged[:1]}
    removed: list[str] = []
    in_use: list[str] = []
    for key in stores.installed_keys(store, name):
        if key in retained or key not in (*activated, *staged):
            continue
        try:
            remove_environment(store, key)
        except NodeError as error:
            if error.reason != "in-use":
                raise
            in_use.append(key)
            continue
        stores.append_journal(store, "removed", run, name=name, key=key)
        removed.append(key)
    _remove_old_parts(store, name)
    return removed, in_use


def _remove_old_parts(store: Store, name: str) -> None:
    staging = os.path.join(store.path, "staging")
    for file in os.listdir(staging):
        path = os.path.join(staging, file)
        is_of_name = file.endswith(".part") and stores.name_of(file.rsplit(".", 2)[0]) == name
        if is_of_name and time.time() - os.stat(path).st_mtime > PARTS_KEPT_S:
            stores.remove_file(path)
