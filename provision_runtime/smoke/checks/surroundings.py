"""What surrounds the environment on this rank: foreign libraries and modules, left-over settings, limits. Pure.

Facts in, findings out. A limit is judged where its effect is known to end or slow a job, and not where it is only unusual.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ...facts import libraries
from ..outcome import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..rank_env import Place

# Sockets to every other rank come on top of what DataLoader's workers hold; 1024 is what systems give unasked.
FILES = 1024
FILES_PER_RANK = 16
# More modules or settings than this in one line hide what they have in common.
NAMED = 5
# What a launcher says of the number of tasks that it started in this step.
TASK_COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def contaminations(facts: Mapping[str, Any]) -> list[Finding]:
    """What is loaded, or can be, that is not of this environment. Holds where torch could not be imported too."""
    return [
        *foreign_libraries(facts),
        *_loadable(facts),
        *_modules(facts["user_site"], facts["pythonpath"]),
    ]


def pitfalls(
    facts: Mapping[str, Any], place: Place, environment: Mapping[str, str]
) -> list[Finding]:
    """Settings and limits under which a job is slow, fails, or is another job than was meant."""
    found = [
        _quota(facts["limits"]["cpus"]),
        _threads(facts, place.local_world_size or 1),
        _open_files(facts["limits"]["nofile"], place.world_size),
        _locked_memory(facts["limits"]),
        _iommu(facts["pci_gpus"]),
        _world(place, environment),
    ]
    return [*_settings(facts), *(finding for finding in found if finding is not None)]


def foreign_libraries(facts: Mapping[str, Any]) -> list[Finding]:
    loaded, torch = facts["libraries"], facts["torch"]
    # Torch's NCCL where it can be told; another one beside it, which somebody else uses, is foreign like the rest.
    used = torch["nccl"]["file"] if torch else None
    nccl = [
        path
        for path in loaded["foreign"]
        if libraries.stem(path) == "nccl" and used in (None, path)
    ]
    found = [_shadowed(path, torch, loaded["own"], facts["environment"]) for path in nccl]
    folders: dict[str, list[str]] = {}
    for path in loaded["foreign"]:
        if path not in nccl:
            folders.setdefault(os.path.dirname(path), []).append(os.path.basename(path))
    for folder, names in sorted(folders.items()):
        blamed = _way_in(folder, facts["environment"])
        found.append(
            Finding(
                "foreign-library",
                f"{_some(names)} loaded from {folder}, which is not this environment{blamed}",
            )
        )
    return found


def _loadable(facts: Mapping[str, Any]) -> list[Finding]:
    """What LD_LIBRARY_PATH offers wins over the environment's own where that is not bound by path (RPATH): cuDNN's parts are not."""
    if (
        facts["torch"] is None
        or facts["torch"]["cuda"] is None
        or not facts["libraries"]["loadable"]
    ):
        return []
    folders = list(dict.fromkeys(os.path.dirname(path) for path in facts["libraries"]["loadable"]))
    names = [os.path.basename(path) for path in facts["libraries"]["loadable"]]
    return [Finding("library-path", f"LD_LIBRARY_PATH offers {_some(names)} in {_some(folders)}")]


def task_count(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """The variable and number of a launcher that started more than one task in this step."""
    numbers = (
        (name, environment[name]) for name in TASK_COUNTS if environment.get(name, "").isdigit()
    )
    return next(((name, int(number)) for name, number in numbers if int(number) > 1), None)


def _shadowed(
    path: str, torch: Mapping[str, Any] | None, own: Sequence[str], environment: Mapping[str, str]
) -> Finding:
    nccl = torch["nccl"] if torch else {}
    version = f" (NCCL {nccl['loaded']})" if nccl.get("loaded") else ""
    mine = next((one for one in own if libraries.stem(one) == "nccl"), None)
    instead = f"not from {mine}" if mine else "which is not this environment"
    return Finding(
        "nccl-shadowed",
        f"libnccl is loaded from {path}{version}, {instead}{_way_in(os.path.dirname(path), environment)}",
    )


def _way_in(folder: str, environment: Mapping[str, str]) -> str:
    """Which variable let it in, where one did."""
    for name, separators in (("LD_PRELOAD", ": "), ("LD_LIBRARY_PATH", ":;")):
        entries = environment.get(name, "").replace(separators[1], ":").split(":")
        named = [
            os.path.dirname(entry) if name == "LD_PRELOAD" else entry for entry in entries if entry
        ]
        if any(os.path.realpath(entry) == os.path.realpath(folder) for entry in named):
            return f"; {name} names it"
    return ""


def _modules(user_site: Mapping[str, Any], pythonpath: Mapping[str, Any]) -> list[Finding]:
    found = []
    if user_site["modules"]:
        found.append(
            Finding(
                "user-site",
                f"{_some(user_site['modules'])} loaded from the user site {user_site['folder']}",
            )
        )
    elif user_site["on_path"] and user_site["packages"]:
        found.append(
            Finding(
                "user-site-on-path",
                f"the user site {user_site['folder']} is on sys.path and holds packages",
            )
        )
    entries = os.pathsep.join(pythonpath["entries"])
    if pythonpath["modules"]:
        found.append(
            Finding(
                "pythonpath", f"{_some(pythonpath['modules'])} loaded from PYTHONPATH={entries}"
            )
        )
    elif entries:
        found.append(
            Finding(
                "pythonpath-on-path",
                f"PYTHONPATH={entries} is on sys.path before the environment's own packages",
            )
        )
    return found


def _settings(facts: Mapping[str, Any]) -> list[Finding]:
    """NCCL's settings do nothing to a build without it."""
    if facts["torch"] is None or facts["torch"]["cuda"] is None:
        return []
    costly = [setting for setting in facts["nccl_settings"] if setting["is_costly"]]
    return [
        Finding("nccl-setting", f"{one['name']}={one['value']} ({one['source']}): {one['effect']}")
        for one in costly
    ]


def _quota(cpus: Mapping[str, Any]) -> Finding | None:
    if cpus["quota"] is None or cpus["quota"] >= cpus["affinity"]:
        return None
    seen = f"os.cpu_count() says {cpus['count']} and the affinity {cpus['affinity']}"
    return Finding(
        "cpu-quota",
        f"the cgroup's quota is {cpus['quota']:g} CPUs, but {seen}: what sizes itself by them is throttled",
    )


def _threads(facts: Mapping[str, Any], ranks: int) -> Finding | None:
    """Only where the user chose a number: without one, and with 1, more ranks than CPUs are the user's choice."""
    given = facts["environment"].get("OMP_NUM_THREADS", "")
    threads, allowed = _first_number(given), facts["limits"]["cpus"]["allowed"]
    if given and threads < 1:
        return Finding("omp-threads", f"OMP_NUM_THREADS={given} is not a number of threads")
    if threads > 1 and threads * ranks > allowed:
        here = f"{ranks} rank{'s' if ranks > 1 else ''} here"
        return Finding(
            "omp-threads",
            f"OMP_NUM_THREADS={given} with {here} is {threads * ranks} threads on {allowed:g} CPUs",
        )
    return None


def _first_number(text: str) -> int:
    """OMP_NUM_THREADS may be a list, one number per level of nesting."""
    first = text.split(",")[0].strip()
    return int(first) if first.isdigit() else 0


def _open_files(limit: int | None, world_size: int) -> Finding | None:
    needed = max(FILES, FILES_PER_RANK * world_size)
    if limit is None or limit >= needed:
        return None
    what = f"{needed} are needed for {world_size} rank{'s' if world_size > 1 else ''} and DataLoader's workers"
    return Finding("nofile-small", f"{limit} files may be open (ulimit -n); {what}")


def _locked_memory(limits: Mapping[str, Any]) -> Finding | None:
    limit, usable = limits["memlock"], limits["infiniband"]["usable"]
    if limit is None or not usable:
        return None
    here = f"InfiniBand is here ({_some(usable)}) and locks its buffers"
    return Finding("memlock-small", f"{limit // 1024} KiB may be locked (ulimit -l), but {here}")


def _iommu(gpus: Sequence[Mapping[str, Any]]) -> Finding | None:
    """What GPUs send to one another over PCIe goes through the IOMMU then, by way of the root complex, where it is slow or lost."""
    translated = [gpu["address"] for gpu in gpus if (gpu["iommu"] or "").startswith("DMA")]
    if len(gpus) < 2 or not translated:
        return None
    return Finding(
        "iommu-on",
        f"the IOMMU translates addresses of {len(translated)} of {len(gpus)} GPUs ({_some(translated)})",
    )


def _world(place: Place, environment: Mapping[str, str]) -> Finding | None:
    """Tasks that each believe to be the whole world work, and nobody notices that they are many jobs."""
    started = task_count(environment)
    if started is None or (not place.launched and started[1] <= place.world_size):
        return None
    name, count = started
    return Finding(
        "world-size",
        f"{count} tasks were started ({name}), but this one is in a world of {place.world_size} of its own",
    )


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + rest
