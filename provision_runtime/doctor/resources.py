"""Probes: what this process may use (CPUs, memory, open files), and settings that change it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from ..checks import surroundings
from ..facts import libraries, limits, nccl
from ..report.text import format_bytes, format_count
from .probe import Findings, Probe, judged, observation

if TYPE_CHECKING:
    from .machine import Machine

# How near to its limit the kubelet lets a node's memory come before it evicts pods
# (https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/).
MEMORY_LEFT = 100 << 20


def local_ranks(machine: Machine) -> int:
    """How many ranks a job would start on this host: one per GPU."""
    gpus = len(libraries.device_nodes(machine.root)) or len(libraries.pci_gpus(machine.root))
    return max(1, gpus)


def shared_memory(machine: Machine) -> Findings:
    shm = limits.shared_memory(machine.root)
    size, free = (shm["bytes"], shm["free_bytes"]) if shm else (None, None)
    finding = surroundings.shared_memory_finding(size, free, local_ranks(machine))
    yield from judged(finding, "statvfs /dev/shm", f"{size} bytes, {free} free")


def temporary_folder(machine: Machine) -> Findings:
    folders = limits.temporary_folders(machine.environment, machine.root)
    finding = surroundings.temporary_folder_finding(folders)
    yield from judged(finding, "folders for temporary files", ", ".join(folders))


def process_limits(machine: Machine) -> Findings:
    facts = limits.collect(machine.root)
    finding = surroundings.open_files_finding(facts["nofile"], local_ranks(machine))
    yield from judged(finding, "/proc/self/limits, Max open files", facts["nofile"])
    finding = surroundings.locked_memory_finding(facts)
    yield from judged(finding, "/proc/self/limits, Max locked memory", facts["memlock"])


def cpus(machine: Machine) -> Findings:
    facts = limits.cpus(machine.root)
    finding = surroundings.quota_finding(facts)
    yield from judged(finding, "quota of the cgroup, CPUs", facts["quota"])
    threads = machine.environment.get("OMP_NUM_THREADS", "")
    finding = surroundings.threads_finding(threads, facts["allowed"], local_ranks(machine))
    yield from judged(finding, "variable OMP_NUM_THREADS", threads)


def memory(machine: Machine) -> Findings:
    for group in limits.memory_groups(machine.root):
        folder = group["folder"]
        if group["oom_kills"]:
            message = f"out of memory {format_count(group['oom_kills'], 'time')} in this group"
            yield observation("oom-killed", message, folder, f"oom_kill {group['oom_kills']}")
        limit, usage = group["limit"], group["usage"]
        if limit is not None and usage is not None and limit - usage < MEMORY_LEFT:
            message = f"{format_bytes(usage)} of {format_bytes(limit)} are in use"
            yield observation("memory-limit", message, folder, f"{usage} of {limit} bytes")


def iommu(machine: Machine) -> Findings:
    finding = surroundings.iommu_finding(libraries.pci_gpus(machine.root))
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
        mistyped = nccl.mistyped([setting["name"]])
        for finding in surroundings.nccl_setting_findings([setting], mistyped):
            value = f"{setting['name']}={setting['value']}"
            yield from judged(finding, setting["source"], value, command)


PROBES = (
    Probe("shared memory", ("shm-small", "shm-limited", "shm-full"), shared_memory),
    Probe("temporary files", ("tmpdir-unusable",), temporary_folder),
    Probe("limits", ("nofile-small", "memlock-small"), process_limits),
    Probe("CPUs", ("cpu-quota", "omp-threads"), cpus),
    Probe("memory", ("oom-killed", "memory-limit"), memory),
    Probe("IOMMU", ("iommu-on",), iommu),
    Probe("NCCL settings", ("nccl-setting", "nccl-setting-mistyped"), nccl_settings),
)
