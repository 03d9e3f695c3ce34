"""The facts of this node that decide whether environments can be stored and run here.

Collects, and judges nothing. A fact that does not come within the deadline (a dead file server, a
GPU driver that hangs) is listed as unread; the others are still reported.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import socket
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..facts import libraries
from ..fs import mounts
from .commands import read_text, which
from .errors import NodeError, describe
from .install_methods import ROOT, install_methods
from .store import Store, active_key
from .store_access import reader_note, require_safe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .results import (
        Failure,
        FitnessFacts,
        Gpus,
        Host,
        NodeEnvironment,
        StoreFacts,
        System,
        Texts,
    )

DEADLINE_S = 20.0
# A driver without persistence mode needs seconds to wake the GPUs.
NVIDIA_SMI_S = 15.0
GPU_FIELDS = "name,uuid,driver_version"
PROBE_BYTES = 4096


def collect(
    path: str, rules: Texts, name: str = "", deadline_s: float = DEADLINE_S
) -> FitnessFacts:
    """path: of the store on this node; it need not exist yet. rules: as nodes.yml has them. name: of
    an environment."""
    readers: dict[str, Callable[[], object]] = {
        "host": host,
        "system": system,
        "store": partial(store, path, rules),
        "gpus": gpus,
        "methods": install_methods,
    }
    if name:
        readers["environment"] = partial(environment, path, name)
    return fitness_facts(readers, deadline_s)


def fitness_facts(readers: Mapping[str, Callable[[], object]], deadline_s: float) -> FitnessFacts:
    facts, unread = read_within(readers, deadline_s)
    # Last, so that it is as near as possible to the time at which the reply arrives.
    return cast("FitnessFacts", {**facts, "unread": unread, "time": time.time()})


def read_within(
    readers: Mapping[str, Callable[[], object]], deadline_s: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """What each reader returned, and for each that failed or is overdue the reason.

    Each reader has a thread: one that waits for a dead file server cannot be stopped.
    """
    facts: dict[str, object] = {}
    unread: dict[str, str] = {}

    def read(name: str, reader: Callable[[], object]) -> None:
        try:
            facts[name] = reader()
        except Exception as error:  # one fact's mistake must not cost the others
            unread[name] = f"{type(error).__name__}: {error}"

    threads = {}
    for name, reader in readers.items():
        threads[name] = threading.Thread(target=read, args=(name, reader), daemon=True)
        threads[name].start()
    end = time.monotonic() + deadline_s
    for thread in threads.values():
        thread.join(max(0.0, end - time.monotonic()))
    # Those that come from now on are not waited for.
    values = {name: facts[name] for name in readers if name in facts}
    overdue = f"no answer within {deadline_s:.0f} s"
    return values, {name: unread.get(name, overdue) for name in sorted(readers.keys() - values)}


def host() -> Host:
    name = socket.gethostname()
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError:
        addresses = set()
    loopback = {address for address in addresses if address.startswith("127.") or address == "::1"}
    return {
        "name": name,
        "addresses": sorted(addresses),
        "is_loopback": bool(addresses) and addresses == loopback,
    }


def system(root: Path = ROOT) -> System:
    libc, libc_version = platform.libc_ver()
    release = read_text(root / "etc/os-release") or ""
    pretty_name = re.search(r'^PRETTY_NAME="?([^"\n]*)', release, re.MULTILINE)
    return {
        "arch": platform.machine(),
        "kernel": platform.release(),
        "glibc": libc_version if libc == "glibc" else None,
        "os": pretty_name[1] if pretty_name else None,
    }


def store(path: str, rules: Texts) -> StoreFacts:
    """The file system of the store, and whether this user can write there: by writing, because
    permissions do not decide it all (NFS servers that squash root, quotas, full disks)."""
    existing = os.path.realpath(path)
    if os.path.exists(existing) and not os.path.isdir(existing):
        raise NodeError("no-such-path", f"{path} is a file, not a folder")
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    status = os.statvfs(existing)
    mount = mounts.locate(Path(existing)).mount
    return {
        "path": path,
        "existing": existing,
        "free_bytes": status.f_bavail * status.f_frsize,
        # File systems that make inodes as they need them report none at all.
        "free_inodes": status.f_favail if status.f_files else None,
        "is_executable": not status.f_flag & os.ST_NOEXEC,
        "type": mount.type if mount else None,
        "source": mount.source if mount else None,
        "is_network": mount is not None and mount.is_network,
        "problem": _store_problem(existing, Store(path, rules)),
    }


def environment(path: str, name: str) -> NodeEnvironment:
    """The active environment of a name, started as the user who asks."""
    from .install import start_python  # few ask for it

    store = Store(path)
    key = active_key(store, name)
    problem: Failure | None = None
    if key is not None:
        try:
            start_python(store.environment(key))
        except (NodeError, OSError) as error:
            problem = describe(error)
    return {"key": key, "problem": problem}


def _store_problem(existing: str, store: Store) -> Failure | None:
    probe = os.path.join(existing, ".provision-check-" + secrets.token_hex(8))
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, b"\0" * PROBE_BYTES)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            os.unlink(probe)
        require_safe(store)
        # A ship opens the store's own folder to those whom the rules name.
        reader_note(store, os.path.dirname(store.path) if store.readers else store.path)
    except (NodeError, OSError) as error:
        if isinstance(error, OSError):
            error.filename = existing
        return describe(error)
    return None


def gpus() -> Gpus:
    driver, on_bus = libraries.driver_version(), len(libraries.pci_gpus())
    program = which("nvidia-smi")
    if program is None:
        problem = "there is no nvidia-smi" if on_bus else None
        return {"driver": driver, "devices": [], "on_bus": on_bus, "problem": problem}
    child = subprocess.run(
        [program, "--query-gpu=" + GPU_FIELDS, "--format=csv,noheader,nounits"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=NVIDIA_SMI_S,
    )
    text = child.stdout.decode(errors="replace")
    devices, smi_driver = parse_devices(text)
    problem = None
    if child.returncode != 0 or not devices:
        problem = " ".join(text.split()) or f"nvidia-smi: status {child.returncode}"
    return {
        "driver": smi_driver or driver,
        "devices": devices,
        "on_bus": on_bus,
        "problem": problem,
    }


def parse_devices(text: str) -> tuple[list[str], str | None]:
    """The names in nvidia-smi's rows of GPU_FIELDS, and the driver of the first; lines that are no
    rows (errors, warnings) are skipped."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    rows = [cells for cells in rows if len(cells) == 3 and cells[1].startswith("GPU-")]
    names, drivers = [cells[0] for cells in rows], [cells[2] for cells in rows]
    # For a GPU that does not respond, nvidia-smi prints words instead.
    has_driver = bool(drivers) and re.fullmatch(r"[\d.]+", drivers[0])
    return names, drivers[0] if has_driver else None
