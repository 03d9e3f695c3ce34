"""What this node's store has of an environment, and whether it could take it. Changes nothing.

provision/workflow/ship/probe.py asks first, in the shell, whether there is anything to do at all.
"""

from __future__ import annotations

import os
import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from . import facts
from . import store as stores
from .errors import NodeError
from .program import SIMULATED_NAME
from .store import Store
from .ways import ways

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def status(
    path: str, pack: Mapping[str, Any], run: Mapping[str, str] = stores.NO_RULES
) -> dict[str, Any]:
    """The state of the store for this image, and the facts that decide whether it fits here: those
    of `nodes check` as far as they matter, and the ways to install it. Raises NodeError
    (unsafe-store)."""
    store, packed = Store(path, run), stores.parse_pack(pack)
    stores.require_safe(store)
    way, note = stores.installed_way(store, packed), ""
    try:
        if way is not None:
            note = stores.reader_note(store, store.python(packed.key))
    except NodeError:
        way = None  # installing it again opens it to its readers, or says why not
    present = {
        "active": stores.active_key(store, packed.name),
        "verified": stores.is_verified(store, packed),
        "installed": way,
        "note": note,
        "received": stores.received_bytes(store, packed),
        "has_image": os.path.exists(store.image(packed)),
        "addresses": _addresses(),
    }
    readers: dict[str, Callable[[], Any]] = {
        "system": facts.system,
        "store": partial(facts.store, path, run),
        "ways": partial(ways, packed.format),
    }
    values, unread = facts.read_within(readers, facts.DEADLINE_S)
    return {**present, **values, "unread": unread, "time": time.time()}


def _addresses() -> list[str]:
    """Under which other nodes may reach this one, the likeliest first: the address that the caller
    connected to, then the host name."""
    if SIMULATED_NAME in os.environ:  # all on one machine
        return ["127.0.0.1"]
    connection = os.environ.get("SSH_CONNECTION", "").split()
    return [*connection[2:3], os.environ.get("SLURMD_NODENAME") or socket.gethostname()]
