"""This host: its identity, its NVIDIA driver and GPUs (from nvidia-smi), and the CPUs and memory
that this process may use."""

from __future__ import annotations

import hashlib
import math
import os
import re
from functools import cache
from pathlib import Path

from provision.core.errors import TimedOut, ToolMissing
from provision.core.types import HostGpus

ROOT = Path("/")


def usable_cpus(root: Path = ROOT) -> int:
    """CPUs that this process may use, at least one: by affinity, and by the quota of its cgroup.

    os.cpu_count() knows neither, and a container with a quota of 2 CPUs on a host with 64 would
    start 64 threads.
    """
    from provision_runtime.facts import limits  # few ask, and its imports take 5 ms

    return max(1, math.ceil(limits.cpus(root)["allowed"]))


def current_umask() -> int:
    """The umask of this process (proc(5)); reading it by umask(2) would change it for a moment."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0


def available_memory(root: Path = ROOT) -> int:
    """Bytes of memory that this process may still use, on the machine and in its cgroups."""
    from provision_runtime.facts import limits

    meminfo = (root / "proc/meminfo").read_text()
    free = int(meminfo.partition("MemAvailable:")[2].split()[0]) << 10
    for group in limits.memory_groups(root):
        if group["limit"] is not None and group["usage"] is not None:
            free = min(free, group["limit"] - group["usage"])
    return free


# The driver of a machine that sleeps needs seconds to wake its GPUs (no persistence mode); one that
# hangs must not hang us.
REPLY_TIMEOUT_S = 30.0
# A driver before 510 does not know compute_cap, and prints nothing at all if that is queried.
# What it prints in place of the name of a GPU that no longer responds.
LOST = ("ERR!", "[Unknown Error]", "[GPU is lost]", "[GPU requires reset]")
FIELDS = ("driver_version,compute_cap,name", "driver_version,name")


@cache
def this_machine() -> HostGpus:
    """Runs nvidia-smi once per process: naming and planning must not see two results."""
    machine = HostGpus()
    for fields in FIELDS:
        try:
            output = _ask_nvidia_smi(fields)
        except ToolMissing:
            return HostGpus(why="there is no nvidia-smi on this machine")
        except TimedOut:
            return HostGpus(why=f"nvidia-smi did not respond within {REPLY_TIMEOUT_S:.0f} s")
        machine = parse_nvidia_smi(output)
        if machine.gpus:
            break
    return machine


def _ask_nvidia_smi(fields: str) -> str:
    """What nvidia-smi prints. Raises ToolMissing, TimedOut."""
    from shutil import which

    if which("nvidia-smi") is None:
        raise ToolMissing("There is no nvidia-smi on this machine.")
    from provision.core.process import run

    command = ["nvidia-smi", "--format=csv,noheader", f"--query-gpu={fields}"]
    result = run(command, timeout_s=REPLY_TIMEOUT_S, check=False)
    return result.stdout.strip() or result.stderr


def parse_nvidia_smi(output: str) -> HostGpus:
    """A machine from nvidia-smi's rows: driver, compute capability where it was queried, name."""
    rows = []
    for line in output.splitlines():
        row = [cell.strip() for cell in line.split(",")]
        if len(row) >= 2 and re.fullmatch(r"\d+(\.\d+){1,2}", row[0]):
            rows.append(row)
    if not rows:
        message = " ".join(output.split()) or "nothing"
        return HostGpus(why=f"nvidia-smi named no GPU; it printed: {message}")
    gpus = []
    lost = 0
    for row in rows:
        # sm_90 from the capability, else the product's name.
        capability = re.fullmatch(r"(\d+)\.(\d)", row[1])
        if capability:
            gpus.append(f"sm_{capability[1]}{capability[2]}")
        elif row[-1] in LOST:
            lost += 1
        else:
            gpus.append(row[-1])
    why = "" if gpus else f"nvidia-smi prints {rows[0][-1]} for every GPU: they are lost"
    return HostGpus(driver=rows[0][0], gpus=tuple(dict.fromkeys(gpus)), why=why, lost=lost)


# The id of this application, by which machine-id(5) has the confidential id of a machine hashed.
APPLICATION = b"provision: where a verdict was measured"
CONTAINER_MARKS = (".dockerenv", "run/.containerenv", "run/systemd/container")
UNKNOWN = "unknown"


def identity(root: Path = ROOT) -> dict[str, str]:
    """This machine, as verdicts name it. No value alone identifies it: machines that were
    cloned share the machine id, and others the host name. `unknown` is no value."""
    driver, gpus = _gpu_identity()
    system = os.uname()  # the module platform takes 2 ms to load
    return {
        "host": system.nodename,
        "machine": system.machine,
        "kernel": system.release,
        "machine_id": _machine_id(root),
        "gpus": gpus,
        "driver": driver,
    }


def _machine_id(root: Path) -> str:
    """The hashed id of this machine. Where /etc/machine-id is missing or may come from an image,
    the hash includes the id of the running kernel, which lasts until the next boot."""
    parts = [_read_line(root / "etc/machine-id")]
    is_valid = re.fullmatch(r"[0-9a-f]{32}", parts[0])
    if not is_valid or any((root / mark).exists() for mark in CONTAINER_MARKS):
        parts.append(_read_line(root / "proc/sys/kernel/random/boot_id"))
    if not parts[-1]:
        return UNKNOWN
    import hmac

    return hmac.new("/".join(parts).encode(), APPLICATION, hashlib.sha256).hexdigest()[:32]


def _read_line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


@cache
def _gpu_identity() -> tuple[str, str]:
    """The driver, and a digest of the names and UUIDs of the GPUs; both empty without a driver."""
    try:
        output = _ask_nvidia_smi("driver_version,uuid,name")
    except ToolMissing:
        return "", ""
    except TimedOut:
        return UNKNOWN, UNKNOWN
    rows = re.findall(r"^\s*(\d+(?:\.\d+){1,2})\s*,\s*(.+?)\s*$", output, re.MULTILINE)
    if not rows:
        return "", ""
    gpus = "\n".join(sorted(gpu for _, gpu in rows))
    return rows[0][0], hashlib.sha256(gpus.encode()).hexdigest()[:32]
