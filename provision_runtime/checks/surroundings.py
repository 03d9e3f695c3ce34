"""Judges the surroundings of the environment on this rank or host: foreign libraries and
modules, settings, limits. Pure: facts in, findings out.

A limit is judged only if it is known to end or slow a job, not merely because it is unusual.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..facts import libraries
from ..report.findings import Finding
from ..report.text import format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..facts.model import (
        CpuFacts,
        EnvironmentFacts,
        LimitFacts,
        NcclSetting,
        PciGpu,
    )

# Sockets to every other rank come on top of what DataLoader's workers open; 1024 is the usual
# default.
FILES = 1024
FILES_PER_RANK = 16
MIB = 1024**2
# NVIDIA recommends 1 GiB in a container for the eight GPUs of a host; Docker gives 64 MiB, which
# ends in "Bus error".
SHM_LEAST = 256 * MIB
SHM_PER_RANK = 64 * MIB
SHM_ENOUGH = 1024 * MIB
# More names than this make a line unreadable.
MAX_NAMES = 5
# Variables in which a launcher gives the number of tasks of this step.
TASK_COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def contaminations(facts: EnvironmentFacts) -> list[Finding]:
    """Libraries and modules from outside this environment that are loaded, or may be. Also works if
    torch could not be imported."""
    findings = foreign_libraries(facts)
    loadable = facts["libraries"]["loadable"]
    if facts["torch"] and facts["torch"]["cuda"] and loadable:
        findings.append(library_path_finding(loadable))
    user_site = facts["user_site"]
    if user_site["modules"]:
        modules = list_names(user_site["modules"])
        message = f"{modules} loaded from the user site {user_site['folder']}"
        findings.append(Finding("user-site", message))
    elif user_site["on_path"] and user_site["packages"]:
        message = f"the user site {user_site['folder']} is on sys.path and has packages"
        findings.append(Finding("user-site-on-path", message))
    modules = list_names(facts["pythonpath"]["modules"])
    entries = os.pathsep.join(facts["pythonpath"]["entries"])
    if modules:
        findings.append(Finding("pythonpath", f"{modules} loaded from PYTHONPATH={entries}"))
    elif entries:
        message = f"PYTHONPATH={entries} is on sys.path before the environment's own packages"
        findings.append(Finding("pythonpath-on-path", message))
    return findings


def pitfalls(
    facts: EnvironmentFacts,
    environment: Mapping[str, str],
    *,
    world_size: int,
    local_ranks: int,
    is_launched: bool,
) -> list[Finding]:
    """Settings and limits that make a job slow, make it fail, or make it a different job.

    is_launched: the smoke test's own launcher started this rank.
    """
    limits, threads = facts["limits"], facts["environment"].get("OMP_NUM_THREADS", "")
    findings = [
        quota_finding(limits["cpus"]),
        threads_finding(threads, limits["cpus"]["allowed"], local_ranks),
        open_files_finding(limits["nofile"], world_size),
        locked_memory_finding(limits),
        iommu_finding(facts["pci_gpus"]),
        _world_size_finding(world_size, is_launched, environment),
    ]
    present = [finding for finding in findings if finding is not None]
    return [*_nccl_setting_findings(facts), *present]


def foreign_libraries(facts: EnvironmentFacts) -> list[Finding]:
    loaded, torch = facts["libraries"], facts["torch"]
    # The libnccl that torch uses, if known; another one, which something else uses, is foreign like
    # the rest.
    used_nccl = torch["nccl"]["file"] if torch else None
    findings = []
    names_by_folder: dict[str, list[str]] = {}
    for path in loaded["foreign"]:
        if libraries.stem(path) == "nccl" and used_nccl in (None, path):
            findings.append(_shadowed_nccl_finding(path, facts))
        else:
            folder, name = os.path.split(path)
            names_by_folder.setdefault(folder, []).append(name)
    for folder, names in sorted(names_by_folder.items()):
        message = (
            f"{list_names(names)} loaded from {folder}, which is not this environment"
            f"{_naming_variable(folder, facts['environment'])}"
        )
        findings.append(Finding("foreign-library", message))
    return findings


def task_count(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """The variable and number of a launcher that started more than one task in this step."""
    for name in TASK_COUNTS:
        text = environment.get(name, "")
        if text.isdigit() and int(text) > 1:
            return name, int(text)
    return None


def library_path_finding(loadable: Sequence[str]) -> Finding:
    """Libraries in LD_LIBRARY_PATH come before the environment's own unless those are bound by path
    (RPATH); cuDNN's parts are not."""
    folders = list(dict.fromkeys(os.path.dirname(path) for path in loadable))
    names = [os.path.basename(path) for path in loadable]
    message = f"LD_LIBRARY_PATH has {list_names(names)} in {list_names(folders)}"
    return Finding("library-path", message)


def _shadowed_nccl_finding(path: str, facts: EnvironmentFacts) -> Finding:
    loaded = facts["torch"]["nccl"]["loaded"] if facts["torch"] else None
    version = f" (NCCL {loaded})" if loaded else ""
    contrast = "which is not this environment"
    for bundled in facts["libraries"]["bundled"]:
        if libraries.stem(bundled) == "nccl":
            contrast = f"not from {bundled}"
            break
    variable = _naming_variable(os.path.dirname(path), facts["environment"])
    return Finding("nccl-shadowed", f"libnccl is loaded from {path}{version}, {contrast}{variable}")


def _naming_variable(folder: str, environment: Mapping[str, str]) -> str:
    """The variable that names the folder, for the end of a message; empty if none does."""
    # ld.so(8): the first is separated by colons or spaces, the second by colons or semicolons.
    preloaded = filter(None, environment.get("LD_PRELOAD", "").replace(" ", ":").split(":"))
    searched = filter(None, environment.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":"))
    folder = os.path.realpath(folder)
    if folder in [os.path.realpath(os.path.dirname(entry)) for entry in preloaded]:
        return "; LD_PRELOAD names it"
    if folder in map(os.path.realpath, searched):
        return "; LD_LIBRARY_PATH names it"
    return ""


def _nccl_setting_findings(facts: EnvironmentFacts) -> list[Finding]:
    """NCCL's settings have no effect on a build without it."""
    if facts["torch"] is None or facts["torch"]["cuda"] is None:
        return []
    findings = costly_settings(facts["nccl_settings"])
    return [*findings, *mistyped_settings(facts["nccl_mistyped"])]


def mistyped_settings(reasons: Mapping[str, str]) -> list[Finding]:
    """reasons: for each variable that NCCL does not read, what is right instead."""
    texts = [f"{name} {reason}" for name, reason in reasons.items()]
    return [Finding("nccl-setting-mistyped", text) for text in texts]


def costly_settings(settings: Sequence[NcclSetting]) -> list[Finding]:
    findings = []
    for setting in settings:
        if setting["is_costly"]:
            message = (
                f"{setting['name']}={setting['value']} ({setting['source']}): {setting['effect']}"
            )
            findings.append(Finding("nccl-setting", message))
    return findings


def shm_needed(ranks: int) -> int:
    return min(SHM_ENOUGH, max(SHM_LEAST, SHM_PER_RANK * ranks))


def shared_memory_finding(size: int | None, free: int | None, ranks: int) -> Finding | None:
    """size, free: bytes of the /dev/shm that so many ranks share; None: there is none."""
    needed = shm_needed(ranks)
    need = f"{format_bytes(needed)} are needed for {format_count(ranks, 'rank')} and loaders"
    if size is None or free is None:
        return Finding("shm-small", f"there is no /dev/shm; {need}")
    if size < needed:
        # One rank shares no memory with others; its loader's workers may.
        id = "shm-limited" if ranks == 1 and size >= SHM_PER_RANK else "shm-small"
        return Finding(id, f"/dev/shm has {format_bytes(size)}; {need}")
    if free < needed:
        message = f"/dev/shm has {format_bytes(free)} of {format_bytes(size)} left; {need}"
        return Finding("shm-full", message)
    return None


def quota_finding(cpus: CpuFacts) -> Finding | None:
    if cpus["quota"] is None or cpus["quota"] >= cpus["affinity"]:
        return None
    return Finding(
        "cpu-quota",
        f"the cgroup's quota is {cpus['quota']:g} CPUs, but os.cpu_count() is {cpus['count']} and "
        f"the affinity {cpus['affinity']}: programs that start as many threads are throttled",
    )


def threads_finding(value: str, cpus: float, ranks: int) -> Finding | None:
    """Judged only if OMP_NUM_THREADS is above 1: otherwise, more ranks than CPUs are the user's
    choice."""
    # It may be a list, one number per level of nesting.
    first = value.split(",")[0].strip()
    threads = int(first) if first.isdigit() else 0
    if value and threads < 1:
        return Finding("omp-threads", f"OMP_NUM_THREADS={value} is not a number of threads")
    if threads > 1 and threads * ranks > cpus:
        return Finding(
            "omp-threads",
            f"OMP_NUM_THREADS={value} with {format_count(ranks, 'rank')} on this host is "
            f"{threads * ranks} threads on {cpus:g} CPUs",
        )
    return None


def open_files_finding(limit: int | None, world_size: int) -> Finding | None:
    needed = max(FILES, FILES_PER_RANK * world_size)
    if limit is None or limit >= needed:
        return None
    return Finding(
        "nofile-small",
        f"at most {limit} files can be open (ulimit -n); "
        f"{format_count(world_size, 'rank')} and DataLoader's workers need {needed}",
    )


def locked_memory_finding(limits: LimitFacts) -> Finding | None:
    limit, usable = limits["memlock"], limits["infiniband"]["usable"]
    if limit is None or not usable:
        return None
    return Finding(
        "memlock-small",
        f"at most {format_bytes(limit)} can be locked (ulimit -l), but this host has InfiniBand "
        f"({list_names(usable)}), which locks its buffers",
    )


def iommu_finding(gpus: Sequence[PciGpu]) -> Finding | None:
    """With an IOMMU, traffic between GPUs over PCIe goes through the root complex, where it is slow
    or lost."""
    translated = [gpu["address"] for gpu in gpus if (gpu["iommu"] or "").startswith("DMA")]
    if len(gpus) < 2 or not translated:
        return None
    return Finding(
        "iommu-on",
        f"the IOMMU translates addresses of {len(translated)} of {len(gpus)} GPUs "
        f"({list_names(translated)})",
    )


def _world_size_finding(
    world_size: int, is_launched: bool, environment: Mapping[str, str]
) -> Finding | None:
    """Separate tasks that each form a world succeed, and nobody notices that they are many jobs."""
    tasks = task_count(environment)
    if tasks is None:
        return None
    name, count = tasks
    if not is_launched and count <= world_size:
        return None
    return Finding(
        "world-size",
        f"{count} tasks were started ({name}), but this one is in a separate world with "
        f"{format_count(world_size, 'rank')}",
    )


def list_names(names: Sequence[str]) -> str:
    text = ", ".join(names[:MAX_NAMES])
    return f"{text} and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else text
