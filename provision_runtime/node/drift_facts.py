"""What may drift on a node: its environment, its GPU and network stack, its system, its limits and
its settings of NCCL.

A fact is a text or a number; None if the node lacks what it is about (no GPU, no such plug-in).
What cannot be read is not None: it is listed as unread, with the reason. `root` is the folder above
/proc, /sys, /etc and the libraries: not `/` where a container sees its host below a mount.
"""

from __future__ import annotations

import os
import re
import resource
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..facts import libraries, limits, nccl
from ..facts.digests import prefix_digests, read_marker
from . import fabric_libraries
from .commands import read_text
from .facts import read_within, system
from .results import SETTING, Distributions, DriftFacts, Texts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    FactReader = Callable[[Path], object]

# Settings of libfabric, aws-ofi-nccl, SHARP and UCX change what NCCL's plug-ins do.
TRANSPORT_PREFIXES = ("FI_", "OFI_NCCL_", "SHARP_COLL_", "UCX_")
KERNEL_MODULES = ("mlx5_core", "efa", "irdma", "nvidia_peermem", "gdrdrv")
# As `ulimit` counts them: files and processes as they are, memory in KiB.
LIMITS = {
    "open_files": (resource.RLIMIT_NOFILE, 1),
    "processes": (resource.RLIMIT_NPROC, 1),
    "locked_memory": (resource.RLIMIT_MEMLOCK, 1024),
    "stack": (resource.RLIMIT_STACK, 1024),
}
# All libraries of the host are looked for at once.
HOST_LIBRARIES = "host libraries"
FACT_DEADLINE_S = 20.0


def node_facts(
    path: str,
    name: str,
    prefix: str = "",
    deep: bool = False,
    digests: bool = True,
    root: str = "/",
) -> DriftFacts:
    """All facts of this node, and one digest of its environment.

    path: the store; name: of the environment. prefix: the environment's folder if it is not in a
    store. digests: whether to read the environment's files at all; deep: their bytes too.
    """
    top, folder = Path(root), _environment_folder(path, name, prefix)
    is_installed = (folder / "bin").is_dir()
    readers = {fact: partial(_or_none, read, top) for fact, read in HOST_FACTS.items()}
    if is_installed:
        for fact, read in ENVIRONMENT_FACTS.items():
            readers[fact] = partial(_or_none, read, folder)
    values, unread = read_within(readers, FACT_DEADLINE_S)
    values.update(values.pop(HOST_LIBRARIES, {}))
    if HOST_LIBRARIES in unread:
        unread.update(dict.fromkeys(fabric_libraries.KINDS, unread.pop(HOST_LIBRARIES)))
    values.update(system(top))
    values.update(limit_facts())
    for setting, text in nccl_settings(top, os.environ).items():
        values[SETTING + setting] = text
    if not is_installed:
        values["environment"] = None
    elif digests:
        try:
            values["files"] = prefix_digests(str(folder), deep)["root"]
        except Exception as error:  # a damaged record must not cost the other facts
            unread["files"] = f"{type(error).__name__}: {error}"
    return {"facts": values, "unread": unread}


def _or_none(read: FactReader, folder: Path) -> object:
    """None if the node lacks what the fact is about."""
    try:
        return read(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None


def distributions(path: str, name: str, prefix: str = "", deep: bool = False) -> Distributions:
    """The digest of each distribution in this node's environment, of them all (`files`), and the
    environment's key."""
    folder = _environment_folder(path, name, prefix)
    digests = prefix_digests(str(folder), deep)
    rows = {
        distribution: [entry["version"], entry["digest"]]
        for distribution, entry in digests["distributions"].items()
    }
    return {"files": digests["root"], "environment": _key(folder), "distributions": rows}


def _environment_folder(path: str, name: str, prefix: str) -> Path:
    return Path(prefix) if prefix else Path(path) / name


def _key(folder: Path) -> str:
    """The folder's name with links resolved: in a store, the key of what is active."""
    return os.path.basename(os.path.realpath(folder))


def _lock_sha256(folder: Path) -> str | None:
    lock_sha256 = read_marker(str(folder)).get("lock_sha256")
    return lock_sha256 if isinstance(lock_sha256, str) else None


def _nccl_version(folder: Path) -> str | None:
    """By the names of its packages; its files' digest covers the rest."""
    names = [
        path.stem for path in folder.glob("lib/python3*/site-packages/nvidia_nccl_*.dist-info")
    ]
    names += [path.stem for path in folder.glob("conda-meta/nccl-[0-9]*.json")]
    return "; ".join(sorted(names)) or None


def _gpu_property(name: str, root: Path) -> str | None:
    """What the driver lists for each GPU under this name; it needs no nvidia-smi, which takes
    seconds a GPU where the driver is not loaded persistently."""
    values = [
        _match(rf"^{name}:\s*(.+?)\s*$", "information", folder) or "unnamed"
        for folder in sorted((root / "proc/driver/nvidia/gpus").glob("*"))
    ]
    return _counted(values)


def _adapters(root: Path) -> str | None:
    names = []
    for folder in sorted((root / "sys/class/infiniband").glob("*")):
        kind = read_text(folder / "hca_type") or re.sub(r"_?\d+$", "", folder.name)
        firmware = read_text(folder / "fw_ver")
        names.append(f"{kind} firmware {firmware}" if firmware else kind)
    return _counted(names)


def _ports(root: Path) -> str | None:
    states = []
    for folder in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        state = (read_text(folder / "state") or "unknown").rpartition(": ")[2]  # "4: ACTIVE"
        states.append(f"{state} {read_text(folder / 'rate') or ''}".strip())
    return _counted(states)


def _kernel_modules(root: Path) -> str | None:
    modules = []
    for name in KERNEL_MODULES:
        folder = root / "sys/module" / name
        if folder.is_dir():
            modules.append(f"{name} {read_text(folder / 'version') or ''}".strip())
    return ", ".join(modules) or None


def _cpus(root: Path) -> str:
    model = _match(r"^model name\s*:\s*(.+)$", "proc/cpuinfo", root)
    return f"{os.cpu_count()} x {model or 'CPU'}"


def _memory(root: Path) -> int | None:
    """Bytes."""
    kibibytes = _match(r"^MemTotal:\s*(\d+) kB", "proc/meminfo", root)
    return int(kibibytes) * 1024 if kibibytes else None


def limit_facts() -> dict[str, str | int | None]:
    """Those of this session. A job of Slurm has the submitter's limits, or PropagateResourceLimits."""
    facts: dict[str, str | int | None] = {}
    for name, (kind, unit) in LIMITS.items():
        soft, hard = (
            "unlimited" if value == resource.RLIM_INFINITY else str(value // unit)
            for value in resource.getrlimit(kind)
        )
        facts[name] = soft if soft == hard else f"{soft} (hard {hard})"
    shared_memory = limits.shared_memory()
    facts["shared_memory"] = shared_memory["bytes"] if shared_memory else None
    return facts


def nccl_settings(root: Path, environment: Texts) -> dict[str, str]:
    """The settings that NCCL and its transports read, by name: value and source."""
    texts = [
        (str(path), read_text(root / str(path).lstrip("/")) or "")
        for path in nccl.files(environment, nccl.home())
    ]
    settings = {
        setting["name"]: f"{setting['value']} ({setting['source']})"
        for setting in nccl.effective(environment, texts)
    }
    for name, value in environment.items():
        if name.startswith(TRANSPORT_PREFIXES):
            settings[name] = f"{value} ({nccl.ENVIRONMENT})"
    return dict(sorted(settings.items()))


def _counted(values: list[str]) -> str | None:
    """`8 x NVIDIA H100 80GB HBM3`."""
    counts = Counter(values)
    return ", ".join(f"{counts[value]} x {value}" for value in sorted(counts)) or None


def _match(pattern: str, name: str, root: Path) -> str | None:
    """What a pattern finds in a file below a folder."""
    match = re.search(pattern, (root / name).read_text(errors="replace"), re.MULTILINE)
    return match[1] if match else None


# By fact: what reads it below the folder above /proc and /sys, or in the environment's folder.
HOST_FACTS: Mapping[str, FactReader] = {
    "driver": lambda root: libraries.parse_driver(
        (root / "proc/driver/nvidia/version").read_text(errors="replace")
    ),
    "gpus": partial(_gpu_property, "Model"),
    "vbios": partial(_gpu_property, "Video BIOS"),
    "iommu": lambda root: _counted([gpu["iommu"] or "none" for gpu in libraries.pci_gpus(root)]),
    "adapters": _adapters,
    "ports": _ports,
    "kernel_modules": _kernel_modules,
    "cpus": _cpus,
    "memory": _memory,
    "governor": partial(_match, r"(\S+)", "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    # always [madvise] never
    "huge_pages": partial(_match, r"\[(\w+)\]", "sys/kernel/mm/transparent_hugepage/enabled"),
    HOST_LIBRARIES: lambda root: fabric_libraries.host_libraries(root, os.environ),
}
ENVIRONMENT_FACTS: Mapping[str, FactReader] = {
    "environment": _key,
    "lock": _lock_sha256,
    "nccl": _nccl_version,
}
