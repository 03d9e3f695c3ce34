"""What mounts environments again after a restart of this node: a script, the stores that it looks after,
and a unit of systemd that starts it. The same for all environments, so a ship changes nothing there.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from .errors import NodeError
from .store import Store
from .store_access import require_safe_path
from .store_files import write_text
from .store_journal import append_journal

if TYPE_CHECKING:
    from .results import Texts

SCRIPT, STORES = "/etc/provision/mount-stores", "/etc/provision/stores"
UNIT = "/etc/systemd/system/provision-stores.service"
ENABLED = "/etc/systemd/system/multi-user.target.wants/provision-stores.service"


def is_mounted_at_boot(path: str) -> bool:
    """Whether this node mounts the environments of a store again after a restart."""
    try:
        return os.path.exists(ENABLED) and path in _stores()
    except OSError:
        return False


def install_unit(path: str, run: Texts, script: str, unit: str) -> dict[str, object]:
    """Have this node mount the environments of a store at boot. Raises NodeError
    (permission-denied, unsafe-store)."""
    if os.geteuid() != 0:
        raise NodeError("permission-denied", f"only root may write {UNIT}")
    store = Store(path, run)
    for folder in {os.path.dirname(file) for file in (SCRIPT, ENABLED)}:
        os.makedirs(folder, exist_ok=True)
        require_safe_path(store, folder)
    for file, text in (
        (STORES, "".join(f"{entry}\n" for entry in sorted({*_stores(), path}))),
        (SCRIPT, script),
        (UNIT, unit),
    ):
        write_text(file, f"{file}.new", text)
    os.chmod(SCRIPT, 0o755)
    if not os.path.lexists(ENABLED):
        os.symlink(UNIT, ENABLED)
    if os.path.isdir("/run/systemd/system"):  # systemd is at work here: sd_booted(3)
        subprocess.run(["systemctl", "daemon-reload"], stdin=subprocess.DEVNULL, check=False)
    append_journal(store, "boot-unit", run)
    return {}


def _stores() -> list[str]:
    try:
        with open(STORES, encoding="utf-8") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []
