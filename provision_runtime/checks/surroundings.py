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
    from collections.abc import Iterator, Mapping, Sequence

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


def contaminations(facts: EnvironmentFacts) -> Iterator[Finding]:
    """Libraries and modules from outside this environment that are loaded, or may be. Also works if
    torch could not be imported."""
    yield from foreign_libraries(facts)
    loadable = facts["libraries"]["loadable"]
    if facts["torch"] and facts["torch"]["cuda"] and loadable:
        yield library_path_finding(loadable)
    user_site, pythonpath = facts["user_site"], facts["pythonpath"]
    packages = "other packages" if user_site["on_path"] and user_site["packages"] else ""
    yield from shadowing("user-site", user_site["folder"], user_site["modules"], packages)
    folders = os.pathsep.join(pythonpath["entries"])
    yield from shadowing("pythonpath", folders, pythonpath["modules"], folders and "other modules")


def shadowing(id: str, folder: str, hiding: Sequence[str], present: str) -> Iterator[Finding]:
    """Of a folder that comes before the environment's packages. hiding: its modules that replace some
    of these; present: what it has, in words; empty for nothing."""
    if hiding:
        yield Finding(id, f"{list_names(hiding)} of {folder} instead of the environment's")
    elif present:
        message = f"{folder} comes before the environment's packages, with {present}"
        yield Finding(f"{id}-on-path", message)


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
        _world_size_finding(0 if is_launched else world_size, environment),
    ]
    # NCCL's settings have no effect on a build without it.
    if facts["torch"] and facts["torch"]["cuda"]:
        for setting in facts["nccl_settings"]:
            findings += nccl_setting_findings(setting, facts["nccl_mistyped"])
    return [finding for finding in findings if finding is not None]


def foreign_libraries(facts: EnvironmentFacts) -> Iterator[Finding]:
    torch = facts["torch"]
    # The libnccl that torch uses, if known; another one, which something else uses, is foreign like
    # the rest.
    used_nccl = torch["nccl"]["file"] if torch else None
    names_by_folder: dict[str, list[str]] = {}
    for path in facts["libraries"]["foreign"]:
        if libraries.stem(path) == "nccl" and used_nccl in (None, path):
            version = f" (NCCL {torch['nccl']['loaded']})" if torch else ""
            message = f"libnccl is loaded from {path}{version}, which is not this environment"
            yield Finding("nccl-shadowed", message)
        else:
            folder, name = os.path.split(path)
            names_by_folder.setdefault(folder, []).append(name)
    for folder, names in sorted(names_by_folder.items()):
        message = f"{list_names(names)} loaded from {folder}, which is not this environment"
        yield Finding("foreign-library", message)


def library_path_finding(loadable: Sequence[str]) -> Finding:
    """Libraries in LD_LIBRARY_PATH come before the environment's own unless those are bound by path
    (RPATH); cuDNN's parts are not."""
    folders = list(dict.fromkeys(os.path.dirname(path) for path in loadable))
    return Finding(
        "library-path",
        f"LD_LIBRARY_PATH has {list_names([os.path.basename(path) for path in loadable])} in {list_names(folders)}",
    )


def nccl_setting_findings(setting: NcclSetting, mistyped: Mapping[str, str]) -> Iterator[Finding]:
    """mistyped: for each variable that NCCL does not read, what is right instead."""
    name = setting["name"]
    if setting["is_costly"]:
        source = f"{name}={setting['value']} ({setting['source']})"
        yield Finding("nccl-setting", f"{source}: {setting['effect']}")
    if name in mistyped:
        yield Finding("nccl-setting-mistyped", f"{name} {mistyped[name]}")


def shared_memory_finding(size: int | None, free: int | None, ranks: int) -> Finding | None:
    """size, free: bytes of the /dev/shm that so many ranks share; None: there is none."""
    needed = min(SHM_ENOUGH, max(SHM_LEAST, SHM_PER_RANK * ranks))
    need = f"{format_bytes(needed)} are needed for {format_count(ranks, 'rank')} and loaders"
    if size is None or free is None:
        return Finding("shm-small", f"there is no /dev/shm; {need}")
    if size < needed:
        # One rank shares no memory with others; its loader's workers may.
        id = "shm-limited" if ranks == 1 and size >= SHM_PER_RANK else "shm-small"
        return Finding(id, f"/dev/shm has {format_bytes(size)}; {need}")
    if free < needed:
        return Finding(
            "shm-full", f"/dev/shm has {format_bytes(free)} of {format_bytes(size)} left; {need}"
        )
    return None


def quota_finding(cpus: CpuFacts) -> Finding | None:
    if cpus["quota"] is None or cpus["quota"] >= cpus["affinity"]:
        return None
    counts = f"os.cpu_count() is {cpus['count']} and the affinity {cpus['affinity']}"
    return Finding(
        "cpu-quota",
        f"the cgroup's quota is {cpus['quota']:g} CPUs, but {counts}: threads are throttled",
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
        count = f"{format_count(ranks, 'rank')} on this host is {threads * ranks} threads"
        return Finding("omp-threads", f"OMP_NUM_THREADS={value} with {count} on {cpus:g} CPUs")
    return None


def open_files_finding(limit: int | None, world_size: int) -> Finding | None:
    needed = max(FILES, FILES_PER_RANK * world_size)
    if limit is None or limit >= needed:
        return None
    ranks = format_count(world_size, "rank")
    return Finding(
        "nofile-small",
        f"at most {limit} files can be open (ulimit -n); {ranks} and loaders need {needed}",
    )


def locked_memory_finding(limits: LimitFacts) -> Finding | None:
    limit, usable = limits["memlock"], limits["infiniband"]
    if limit is None or not usable:
        return None
    adapters = f"this host has InfiniBand ({list_names(usable)}), which locks its buffers"
    return Finding(
        "memlock-small", f"at most {format_bytes(limit)} can be locked (ulimit -l), but {adapters}"
    )


def temporary_folder_finding(folders: Mapping[str, bool]) -> Finding | None:
    """Can multiprocessing make its sockets in a folder for temporary files? folders: those that Python
    tries, and whether they can be written."""
    if not folders or any(folders.values()):
        return None
    tried = ", ".join(folders)
    return Finding("tmpdir-unusable", f"no folder for temporary files can be written: {tried}")


def iommu_finding(gpus: Sequence[PciGpu]) -> Finding | None:
    """With an IOMMU, traffic between GPUs over PCIe goes through the root complex, where it is slow
    or lost."""
    translated = [gpu["address"] for gpu in gpus if (gpu["iommu"] or "").startswith("DMA")]
    if len(gpus) < 2 or not translated:
        return None
    count = f"{len(translated)} of {len(gpus)} GPUs ({list_names(translated)})"
    return Finding("iommu-on", f"the IOMMU translates addresses of {count}")


def _world_size_finding(world_size: int, environment: Mapping[str, str]) -> Finding | None:
    """Separate tasks that each form a world succeed, and nobody notices that they are many jobs."""
    for name in TASK_COUNTS:
        text = environment.get(name, "")
        if text.isdigit() and int(text) > max(1, world_size):
            return Finding(
                "world-size",
                f"{text} tasks were started ({name}), but this one is in a separate world",
            )
    return None


def list_names(names: Sequence[str]) -> str:
    text = ", ".join(names[:MAX_NAMES])
    return f"{text} and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else text
