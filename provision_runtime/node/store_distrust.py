"""An environment in this node's store that is not what was verified: the next ship must look again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import store as stores
from .store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping


def distrust(path: str, name: str, key: str, run: Mapping[str, str]) -> dict[str, Any]:
    """Forget that an image was verified and installed.

    A ship then reads the image again, sends it if its bytes are wrong, and installs it anew. Until
    then jobs keep what they use. Raises NodeError (in-use).
    """
    store = Store(path, run)
    with stores.locked(store, name, run):
        stores.remove_file(store.verified(key))
        stores.remove_file(store.installed(key))
        stores.append_journal(store, "distrusted", run, name=name, key=key)
    return stores.release(path, name, run)
