"""What this node's store has of an environment, and whether it could take it. Changes nothing.

provision/workflow/ship/probe.py asks first, in the shell, whether there is anything to do at all.
"""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import TYPE_CHECKING

from . import facts
from . import store as stores
from .errors import NodeError
from .install_methods import install_methods
from .program import SIMULATED_NAME
from .signatures import recorded_signature, require_signed
from .store import Store
from .store_access import reader_note, require_safe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .results import StoreStatus, Texts


def status(
    path: str,
    pack: Mapping[str, object],
    run: Texts,
    signed: Texts | None = None,
) -> StoreStatus:
    """The state of the store for this image, and the facts that decide whether it fits here: those
    of `nodes check` as far as they matter, and the methods that can install it. Raises NodeError
    (unsafe-store, not-signed, older-pack)."""
    store, packed = Store(path, run), stores.parse_pack(pack)
    require_safe(store)
    require_signed(store, packed, signed or recorded_signature(store, packed.key), run)
    method, note = stores.installed_method(store, packed), ""
    try:
        if method is not None:
            note = reader_note(store, store.python(packed.key))
    except NodeError:
        method = None  # installing it again opens it to its readers, or says why not
    readers: dict[str, Callable[[], object]] = {
        "system": facts.system,
        "store": partial(facts.store, path, run),
        "methods": partial(install_methods, packed.format),
    }
    return {
        "active": stores.active_key(store, packed.name),
        "verified": stores.is_verified(store, packed),
        "installed": method,
        "note": note,
        "received": stores.received_bytes(store, packed),
        "addresses": _addresses(),
        **facts.fitness_facts(readers, facts.DEADLINE_S),
    }


def _addresses() -> list[str]:
    """Under which other nodes may reach this one, the likeliest first: the address that the caller
    connected to, then the host name."""
    if SIMULATED_NAME in os.environ:  # all on one machine
        return ["127.0.0.1"]
    connection = os.environ.get("SSH_CONNECTION", "").split()
    return [*connection[2:3], os.environ.get("SLURMD_NODENAME") or socket.gethostname()]
