"""What this node's store has of an environment, and what it could take. Changes nothing."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Any

from . import store as stores
from .store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping


def status(path: str, pack: Mapping[str, Any]) -> dict[str, Any]:
    """The state of the store for this image.

    Where it is active already, that is all; else also what decides whether it fits here.
    """
    store = Store(path)
    answer: dict[str, Any] = {
        "active": stores.active_key(store, pack["name"]),
        "verified": stores.is_verified(store, pack),
        "installed": stores.installed_way(store, pack),
    }
    if answer["active"] == pack["key"] and answer["verified"] and answer["installed"]:
        return answer
    # For a ship without changes these imports would be half of its time.
    import platform

    from .ways import ways

    answer["received"] = stores.received_bytes(store, pack)
    answer["has_image"] = os.path.exists(store.image(pack))
    answer["ways"] = ways(pack["format"])
    answer["addresses"] = _addresses()
    answer["arch"] = platform.machine()
    libc, version = platform.libc_ver()
    answer["glibc"] = version if libc == "glibc" else None
    answer["time"] = time.time()
    answer.update(_space(_existing_parent(path)))
    return answer


def _addresses() -> list[str]:
    """Under which other nodes may reach this one, the likeliest first: the address that the caller
    connected to, then the host name."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    likely = connection[2:3]
    likely.append(os.environ.get("SLURMD_NODENAME") or socket.gethostname())
    if "PROVISION_NODE_NAME" in os.environ:  # simulated nodes are all on one machine
        return ["127.0.0.1"]
    return likely


def _existing_parent(path: str) -> str:
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def _space(directory: str) -> dict[str, Any]:
    """What the file system of a directory has left for this user; its type and source tell whether
    nodes share it. `inodes` is None where the file system makes them as needed."""
    numbers = os.statvfs(directory)
    refusal = None
    if numbers.f_flag & os.ST_RDONLY:
        refusal = "read-only"
    elif not os.access(directory, os.W_OK | os.X_OK):
        refusal = "permission-denied"
    return {
        "directory": directory,
        "refusal": refusal,
        "free_bytes": numbers.f_bavail * numbers.f_frsize,
        "free_inodes": numbers.f_favail if numbers.f_files else None,
        "mount": _mount(directory),
    }


def _mount(directory: str) -> list[str]:
    """Type and source of the file system, from the kernel's list (proc(5), mountinfo)."""
    device = os.stat(directory).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            if before.split()[2] == number:
                return after.split()[:2]
    return []
