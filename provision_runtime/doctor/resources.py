"""Probes: what this process may use (CPUs, memory, open files), and settings that change it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from ..checks import surroundings
from ..facts import libraries, limits, nccl
from ..report.text import format_bytes, format_count
from .probe import Findings, Probes, judged, observation

if TYPE_CHECKING:
    from .machine import Machine

# How near to its limit the kubelet lets a node's memory come before it evicts pods
# (https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/).
MEMORY_LEFT = 100 << 20


def local_ranks(machine: Machine) -> int:
    """How many ranks a job would start on this host: one per GPU."""
    gpus = len(libraries.device_nodes(machine.root)) or len(machine.gpus())
    return max(1, gpus)


def shared_memory(machine: Machine) -> Findings:
    shm = limits.shared_memory(machine.root)
    size, free = (shm["bytes"], shm["free_bytes"]) if shm else (None, None)
    yield from judged(
        surroundings.shared_memory_finding(size, free, local_ranks(machine)),
        "statvfs /dev/shm",
        f"{size} bytes, {free} free",
    )


def temporary_folder(machine: Machine) -> Findings:
    folders = limits.temporary_folders(machine.environment, machine.root)
    yield from judged(
        surroundings.temporary_folder_finding(folders),
        "folders for temporary files",
        ", ".join(folders),
    )


def process_limits(machine: Machine) -> Findings:
    facts = limits.collect(machine.root)
    yield from judged(
        surroundings.open_files_finding(facts["nofile"], local_ranks(machine)),
        "/proc/self/limits, Max open files",
        facts["nofile"],
    )
    yield from judged(
        surroundings.locked_memory_finding(facts),
        "/proc/self/limits, Max locked memory",
        facts["memlock"],
    )


def cpus(machine: Machine) -> Findings:
    facts = limits.cpus(machine.root)
    yield from judged(
        surroundings.quota_finding(facts), "quota of the cgroup, CPUs", facts["quota"]
    )
    threads = machine.variable("OMP_NUM_THREADS")
    yield from judged(
        surroundings.threads_finding(threads, facts["allowed"], local_ranks(machine)),
        "variable OMP_NUM_THREADS",
        threads,
    )


def memory(machine: Machine) -> Findings:
    for group in limits.memory_groups(machine.root):
        folder = group["folder"]
        if group["oom_kills"]:
            yield observation(
                "oom-killed",
                f"out of memory {format_count(group['oom_kills'], 'time')} in this cgroup",
                folder,
                f"oom_kill {group['oom_kills']}",
            )
        limit, usage = group["limit"], group["usage"]
        if limit is not None and usage is not None and limit - usage < MEMORY_LEFT:
            yield observation(
                "memory-limit",
                f"{format_bytes(usage)} of {format_bytes(limit)} are in use",
                folder,
                f"{usage} of {limit} bytes",
            )


def iommu(machine: Machine) -> Findings:
    finding = surroundings.iommu_finding(machine.gpus())
    yield from judged(finding, "/sys/bus/pci/devices/*/iommu_group/type", finding)


def nccl_settings(machine: Machine) -> Findings:
    # NCCL takes the home from the user database, not from $HOME.
    home = nccl.home() if machine.is_real else Path(machine.home)
    texts = [(str(path), machine.read(str(path))) for path in nccl.files(machine.environment, home)]
    for setting in nccl.effective(machine.environment, texts):
        command = f"unset {shlex.quote(setting['name'])}"
        if setting["source"] != nccl.ENVIRONMENT:
            pattern = shlex.quote(f"/^{setting['name']}=/d")
            command = f"sed -i {pattern} {shlex.quote(setting['source'])}"
        for finding in surroundings.nccl_setting_findings(
            setting, nccl.mistyped([setting["name"]])
        ):
            yield from judged(
                finding, setting["source"], f"{setting['name']}={setting['value']}", command
            )


PROBES: Probes = {
    "shared memory": shared_memory,
    "temporary files": temporary_folder,
    "limits": process_limits,
    "CPUs": cpus,
    "memory": memory,
    "IOMMU": iommu,
    "NCCL settings": nccl_settings,
}
