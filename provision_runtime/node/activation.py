"""Which environment of the store is active: switched by one rename, the last ones retained."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from . import store as stores
from .errors import NodeError
from .install import remove_environment, require_unused
from .metrics import remove_metrics, write_metrics
from .modulefile import refresh_module, remove_module
from .signatures import recorded_signature, require_signed
from .store import Store
from .store_access import require_safe_environment
from .store_files import remove_file, sync_directory
from .store_journal import append_journal, latest_keys
from .store_lock import locked, release

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .results import Activation, History, Texts

RETAINED_ENVIRONMENTS = 3
# An image that nobody went on receiving for this time is removed.
PARTS_RETAINED_S = 7 * 86400.0


def activate(path: str, name: str, key: str, run: Texts, is_shared: bool = False) -> Activation:
    """Make an installed environment the active one, and remove those that are no longer retained.

    is_shared: other nodes use this store too, and jobs there cannot be seen: nothing is removed.

    Running jobs stay in the environment that they started in, because they start in `envs/KEY`.
    Raises NodeError (not-installed, unsafe-store, not-signed, older-pack).
    """
    store = Store(path, run)
    with locked(store, name, run):
        previous = stores.active_key(store, name)
        directory = store.environment(key)
        # A folder without `bin` is one where the image is not mounted any more.
        if not (os.path.exists(store.installed(key)) and os.path.isdir(f"{directory}/bin")):
            raise NodeError("not-installed", f"{directory} is not there")
        require_safe_environment(store, key)
        require_signed(store, stores.pack_of(store, key), recorded_signature(store, key), run)
        if previous != key:
            staged = store.join("staging", f"{name}.link")
            remove_file(staged)
            os.symlink(os.path.join("envs", key), staged)
            os.replace(staged, store.link(name))
            sync_directory(store.path)
            append_journal(store, "activated", run, name=name, key=key, previous=previous)
            refresh_module(store, name)
        write_metrics(store, name, key)
        removed, in_use = ([], []) if is_shared else prune(store, name, run)
        release(path, name, run)
    return {"active": key, "previous": previous, "removed": removed, "in_use": in_use}


def history(path: str, name: str) -> History:
    """The active environment of this name, the one that was active before it, and all that are
    installed here."""
    store = Store(path)
    active = stores.active_key(store, name)
    installed = stores.installed_keys(store, name)
    previous = None
    for key in latest_keys(store, name, "activated"):
        if key != active and key in installed:
            previous = key
            break
    return {"active": active, "previous": previous, "installed": installed}


def prune(store: Store, name: str, run: Texts) -> tuple[list[str], list[str]]:
    """Remove the environments of this name that are no longer retained.

    Retained: those that were active last, the newest of those that were never active (staged for
    later), and what the journal does not list. Returns what was removed, and what should be but
    stays because processes use it.
    """
    activated = latest_keys(store, name, "activated")
    staged = [key for key in latest_keys(store, name, "installed") if key not in activated]
    retained = {stores.active_key(store, name), *activated[:RETAINED_ENVIRONMENTS], *staged[:1]}
    keys = [
        key
        for key in stores.installed_keys(store, name)
        if key not in retained and key in (*activated, *staged)
    ]
    removed, in_use = remove_unused(store, name, keys, run)
    prune_parts(store, name, PARTS_RETAINED_S)
    return removed, list(in_use)


def remove_unused(
    store: Store, name: str, keys: Iterable[str], run: Texts, dry_run: bool = False
) -> tuple[list[str], dict[str, str]]:
    """Remove environments; returns those that went, and why others stay: processes use them.

    dry_run: change nothing.
    """
    removed, in_use = [], {}
    for key in keys:
        try:
            if dry_run:
                require_unused(store, key)
            else:
                remove_environment(store, key)
        except NodeError as error:
            if error.reason != "in-use":
                raise
            in_use[key] = error.message
            continue
        removed.append(key)
        if dry_run:
            continue
        if key == stores.active_key(store, name):
            remove_file(store.link(name))
            remove_metrics(store, name)
        remove_module(store, key)
        append_journal(store, "removed", run, name=name, key=key)
    return removed, in_use


def prune_parts(store: Store, name: str, older_than_s: float) -> None:
    """Remove images of this name that nobody went on receiving."""
    for name_and_hash in store.files("staging", ".part"):
        part = store.join("staging", f"{name_and_hash}.part")
        is_of_name = stores.name_of(name_and_hash.rpartition(".")[0]) == name
        if is_of_name and time.time() - os.stat(part).st_mtime > older_than_s:
            remove_file(part)
