"""The facts of this node that decide whether environments can be stored and run here.

Collects, and judges nothing. A fact that does not come within the deadline (a dead file server, a
GPU driver that hangs) is listed as unread; the others are still reported.
"""

from __future__ import annotations

import getpass
import gzip
import os
import platform
import re
import resource
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..facts import libraries, limits, nccl
from ..fs import mounts
from . import store as stores
from .errors import NodeError, of_system_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path("/")
DEADLINE_S = 20.0
# A driver without persistence mode needs seconds to wake the GPUs.
NVIDIA_SMI_S = 15.0
GPU_FIELDS = "name,uuid,memory.total,driver_version"
# A shell that ssh starts often has a shorter PATH than a login shell.
MORE_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
TOOLS = (
    "squashfuse_ll",
    "squashfuse",
    "fusermount3",
    "fusermount",
    "unsquashfs",
    "zstd",
    "enroot",
    "apptainer",
    "singularity",
)
# <linux/capability.h>: the right to mount.
CAP_SYS_ADMIN = 21
PROBE_BYTES = 4096


def collect(
    path: str, deadline_s: float = DEADLINE_S, rules: Mapping[str, str] = stores.NO_RULES
) -> dict[str, Any]:
    """path: of the store on this node; it need not exist yet. rules: as nodes.yml has them."""
    readers: dict[str, Callable[[], Any]] = {
        "host": host,
        "system": system,
        "user": user,
        "store": partial(store, path, rules),
        "gpus": gpus,
        "mounting": mounting,
        "tools": tools,
        "limits": limits_here,
        "nccl_settings": nccl.settings,
    }
    facts, unread = read_within(readers, deadline_s)
    # Last, so that it is as near as possible to the time at which the answer arrives.
    return {**facts, "unread": unread, "time": time.time()}


def read_within(
    readers: Mapping[str, Callable[[], Any]], deadline_s: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """What each reader returned, and for each that failed or is late the reason.

    Each reader has a thread: one that waits for a dead file server cannot be stopped.
    """
    facts: dict[str, Any] = {}
    unread: dict[str, str] = {}

    def read(name: str, reader: Callable[[], Any]) -> None:
        try:
            facts[name] = reader()
        except Exception as error:  # one fact's mistake must not cost the others
            unread[name] = f"{type(error).__name__}: {error}"

    threads = {}
    for name, reader in readers.items():
        threads[name] = threading.Thread(target=read, args=(name, reader), daemon=True)
        threads[name].start()
    end = time.monotonic() + deadline_s
    for name, thread in threads.items():
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            unread[name] = f"no answer within {deadline_s:.0f} s"
    late = {name for name in unread if name not in facts}
    return {name: facts[name] for name in readers if name in facts}, {
        name: unread[name] for name in sorted(late)
    }


def host() -> dict[str, Any]:
    """addresses: of the host's own name; empty if it does not resolve. Ranks on other nodes cannot
    reach a loopback address."""
    name = socket.gethostname()
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError:
        addresses = set()
    return {
        "name": name,
        "addresses": sorted(addresses),
        "is_loopback": bool(addresses) and all(_is_loopback(address) for address in addresses),
        "machine_id": _read(ROOT / "etc/machine-id"),
    }


def system(root: Path = ROOT) -> dict[str, Any]:
    libc, libc_version = platform.libc_ver()
    release = _read(root / "etc/os-release") or ""
    pretty_name = re.search(r'^PRETTY_NAME="?([^"\n]*)', release, re.MULTILINE)
    return {
        "arch": platform.machine(),
        "kernel": platform.release(),
        "glibc": libc_version if libc == "glibc" else None,
        "os": pretty_name[1] if pretty_name else None,
        "python": platform.python_version(),
        "python_path": sys.executable,
    }


def user() -> dict[str, Any]:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # no such number in the user database
        name = str(os.getuid())
    return {"name": name, "uid": os.getuid()}


def store(path: str, rules: Mapping[str, str] = stores.NO_RULES) -> dict[str, Any]:
    """The file system of the store, and whether this user can write there: by writing, because
    permissions do not say it all (NFS servers that squash root, quotas, full disks).

    existing: the nearest folder that exists. problem: reason and message if writing failed, if
    another user could change what lies there, or if those who should read it cannot.
    """
    existing = os.path.realpath(path)
    if os.path.exists(existing) and not os.path.isdir(existing):
        raise NodeError("no-such-path", f"{path} is a file, not a folder")
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    status = os.statvfs(existing)
    location = mounts.locate(Path(existing))
    return {
        "path": path,
        "existing": existing,
        "free_bytes": status.f_bavail * status.f_frsize,
        "total_bytes": status.f_blocks * status.f_frsize,
        # File systems that make inodes as they need them report none at all.
        "free_inodes": status.f_favail if status.f_files else None,
        "is_executable": not status.f_flag & os.ST_NOEXEC,
        "type": location.mount.type if location.mount else None,
        "source": location.mount.source if location.mount else None,
        "is_network": location.mount is not None and location.mount.is_network,
        "problem": _write_problem(existing) or _access_problem(path, rules),
    }


def _access_problem(path: str, rules: Mapping[str, str]) -> dict[str, str] | None:
    looked_at = stores.Store(path, rules)
    try:
        stores.require_safe(looked_at)
        # A ship opens the store's own folder to those whom the rules name.
        stores.reader_note(looked_at, os.path.dirname(path) if looked_at.readers else path)
    except NodeError as error:
        return {"reason": error.reason, "message": error.message}
    return None


def _write_problem(folder: str) -> dict[str, str] | None:
    probe = os.path.join(folder, ".provision-check-" + secrets.token_hex(8))
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, b"\0" * PROBE_BYTES)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            os.unlink(probe)
    except OSError as error:
        error.filename = folder
        problem = of_system_error(error)
        return {"reason": problem.reason, "message": problem.message}
    return None


def gpus() -> dict[str, Any]:
    """devices: as nvidia-smi lists them. on_bus: how many NVIDIA GPUs the PCI bus has, whatever the
    driver says. problem: why nvidia-smi lists none or fewer."""
    facts: dict[str, Any] = {
        "driver": libraries.driver_version(),
        "devices": [],
        "on_bus": len(libraries.pci_gpus()),
        "problem": None,
    }
    program = which("nvidia-smi")
    if program is None:
        if facts["on_bus"]:
            facts["problem"] = "there is no nvidia-smi"
        return facts
    child = subprocess.run(
        [program, "--query-gpu=" + GPU_FIELDS, "--format=csv,noheader,nounits"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=NVIDIA_SMI_S,
    )
    text = child.stdout.decode(errors="replace")
    facts["devices"] = parse_devices(text)
    drivers = [device.pop("driver") for device in facts["devices"]]
    # Of a GPU that does not answer nvidia-smi prints words instead.
    if drivers and re.fullmatch(r"[\d.]+", drivers[0]):
        facts["driver"] = drivers[0]
    if child.returncode != 0 or not facts["devices"]:
        facts["problem"] = " ".join(text.split()) or f"nvidia-smi: status {child.returncode}"
    return facts


def parse_devices(text: str) -> list[dict[str, Any]]:
    """nvidia-smi's rows of GPU_FIELDS; lines that are no rows (errors, warnings) are skipped."""
    devices = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 4 or not cells[1].startswith("GPU-"):
            continue
        memory = int(cells[2]) if cells[2].isdigit() else None
        devices.append(
            {"name": cells[0], "uuid": cells[1], "memory_mib": memory, "driver": cells[3]}
        )
    return devices


def mounting(root: Path = ROOT) -> dict[str, Any]:
    """Which ways of mounting an image this user has. squashfs_zstd: None if the kernel's
    configuration cannot be read."""
    status = _read(root / "proc/self/status") or ""
    capabilities = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status, re.MULTILINE)
    effective = int(capabilities[1], 16) if capabilities else 0
    return {
        "may_mount": bool(effective >> CAP_SYS_ADMIN & 1),
        "squashfs": has_squashfs(root),
        "squashfs_zstd": _kernel_option("CONFIG_SQUASHFS_ZSTD", root),
        "fuse": os.access(root / "dev/fuse", os.R_OK | os.W_OK),
    }


def has_squashfs(root: Path = ROOT) -> bool:
    """Whether the kernel has squashfs, built in, loaded, or as a module."""
    for line in (_read(root / "proc/filesystems") or "").splitlines():
        if line.split()[-1:] == ["squashfs"]:
            return True
    modules = root / "lib/modules" / platform.release()
    if "/squashfs.ko" in (_read(modules / "modules.builtin") or ""):
        return True
    return any((modules / "kernel/fs/squashfs").glob("squashfs.ko*"))


def _kernel_option(name: str, root: Path) -> bool | None:
    release = platform.release()
    for path in (
        root / "proc/config.gz",
        root / "boot" / f"config-{release}",
        root / "lib/modules" / release / "config",
    ):
        try:
            data = path.read_bytes()
        except OSError:
            continue
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        return re.search(rf"^{name}=[ym]$".encode(), text, re.MULTILINE) is not None
    return None


def tools() -> dict[str, str]:
    """The paths of those tools that this node has."""
    paths = {}
    for name in TOOLS:
        path = which(name)
        if path is not None:
            paths[name] = path
    return paths


def which(name: str) -> str | None:
    folders = [os.environ.get("PATH", ""), *MORE_FOLDERS]
    return shutil.which(name, path=os.pathsep.join(folders))


def limits_here() -> dict[str, Any]:
    facts: dict[str, Any] = dict(limits.collect())
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    facts["nproc"] = None if processes == resource.RLIM_INFINITY else processes
    return facts


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
