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
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..facts import libraries, limits, nccl
from ..facts.digests import prefix_digests, read_marker
from ..fs import mounts
from . import fabric_libraries
from .facts import read_within, system

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .fabric_libraries import LibraryFile

    FactReaders = Mapping[str, Callable[[], Any]]

# Of libfabric, aws-ofi-nccl, SHARP and UCX: they change what NCCL's plug-ins do.
TRANSPORT_PREFIXES = ("FI_", "OFI_NCCL_", "SHARP_COLL_", "UCX_")
KERNEL_MODULES = ("mlx5_core", "efa", "irdma", "nvidia_peermem", "gdrdrv")
# As `ulimit` counts them: files and processes as they are, memory in KiB.
COUNT_LIMITS = {"open_files": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC}
MEMORY_LIMITS = {"locked_memory": resource.RLIMIT_MEMLOCK, "stack": resource.RLIMIT_STACK}
# All libraries of the host are looked for at once.
HOST_LIBRARIES = "host libraries"
LIBRARY_FACTS = {
    kind.name: "host_nccl" if kind.name == "nccl" else kind.name for kind in fabric_libraries.KINDS
}
FACT_DEADLINE_S = 20.0


def node_facts(
    path: str,
    name: str,
    prefix: str = "",
    deep: bool = False,
    digests: bool = True,
    root: str = "/",
) -> dict[str, Any]:
    """All facts of this node, and one digest of its environment.

    path: the store; name: of the environment. prefix: the environment's folder if it is not in a
    store. digests: whether to read the environment's files at all; deep: their bytes too.
    """
    started = time.time()
    top, folder = Path(root), _environment_folder(path, name, prefix)
    is_installed = (folder / "bin").is_dir()
    readers = {**gpu_facts(top), **network_facts(top), **system_facts(top)}
    readers[HOST_LIBRARIES] = partial(host_library_facts, top)
    if is_installed:
        readers.update(environment_facts(folder))
    values, unread = read_within(
        {fact: partial(_or_none, read) for fact, read in readers.items()}, FACT_DEADLINE_S
    )
    values.update(values.pop(HOST_LIBRARIES, {}))
    if HOST_LIBRARIES in unread:
        reason = unread.pop(HOST_LIBRARIES)
        unread.update(dict.fromkeys(LIBRARY_FACTS.values(), reason))
    values.update(limit_facts())
    if not is_installed:
        values["environment"] = None
    elif digests:
        try:
            values["files"] = prefix_digests(str(folder), deep)["root"]
        except Exception as error:  # a damaged record must not cost the other facts
            unread["files"] = f"{type(error).__name__}: {error}"
    return {
        "facts": values,
        "unread": unread,
        "settings": nccl_settings(top, os.environ),
        "started": started,
        "ended": time.time(),
    }


def _or_none(read: Callable[[], Any]) -> Any:
    """None if the node lacks what the fact is about."""
    try:
        return read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def distributions(path: str, name: str, prefix: str = "", deep: bool = False) -> dict[str, Any]:
    """The digest of each distribution in this node's environment, of them all (`files`), and the
    environment's key."""
    folder = _environment_folder(path, name, prefix)
    digests = prefix_digests(str(folder), deep)
    rows = {}
    for distribution, entry in digests["distributions"].items():
        rows[distribution] = [entry["version"], entry["digest"]]
    return {
        "files": digests["root"],
        "environment": _key(folder),
        "distributions": rows,
    }


def _environment_folder(path: str, name: str, prefix: str) -> Path:
    return Path(prefix) if prefix else Path(path) / name


def environment_facts(folder: Path) -> FactReaders:
    return {
        "environment": partial(_key, folder),
        "lock": partial(_lock_sha256, folder),
        "mounted_as": partial(_mount_type, folder),
        "nccl": partial(_nccl_version, folder),
    }


def _key(folder: Path) -> str:
    """The folder's name with links resolved: in a store, the key of what is active."""
    return os.path.basename(os.path.realpath(folder))


def _lock_sha256(folder: Path) -> str | None:
    lock_sha256 = read_marker(str(folder)).get("lock_sha256")
    return lock_sha256 if isinstance(lock_sha256, str) else None


def _mount_type(folder: Path) -> str | None:
    """`squashfs`, `fuse.squashfuse`; `folder on ext4` if the environment is no mount of its own."""
    mount = mounts.locate(folder).mount
    if mount is None:
        return None
    is_own_mount = mount.point == os.path.realpath(folder)
    return mount.type if is_own_mount else f"folder on {mount.type}"


def _nccl_version(folder: Path) -> str | None:
    """Where it lies within the environment, its files' digest covers."""
    files = fabric_libraries.environment_libraries(folder)
    return "; ".join(_describe_version(file) for file in files if file.kind == "nccl") or None


def gpu_facts(root: Path) -> FactReaders:
    return {
        "driver": partial(_driver, root),
        "gpus": partial(_gpu_property, root, "Model"),
        "vbios": partial(_gpu_property, root, "Video BIOS"),
        "iommu": partial(_iommu, root),
    }


def _driver(root: Path) -> str | None:
    return libraries.parse_driver((root / "proc/driver/nvidia/version").read_text(errors="replace"))


def _gpu_property(root: Path, name: str) -> str | None:
    """What the driver says about each GPU under this name; it needs no nvidia-smi, which takes
    seconds a GPU where the driver is not loaded persistently."""
    values = []
    for file in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        match = re.search(rf"^{name}:\s*(.+?)\s*$", file.read_text(errors="replace"), re.MULTILINE)
        values.append(match[1] if match else "unnamed")
    return _counted(values)


def _iommu(root: Path) -> str | None:
    types = [gpu["iommu"] or "none" for gpu in libraries.pci_gpus(root)]
    return _counted(types)


def network_facts(root: Path) -> FactReaders:
    return {
        "adapters": partial(_adapters, root),
        "ports": partial(_ports, root),
        "kernel_modules": partial(_kernel_modules, root),
    }


def _adapters(root: Path) -> str | None:
    names = []
    for folder in sorted((root / "sys/class/infiniband").glob("*")):
        kind = _line(folder / "hca_type") or re.sub(r"_?\d+$", "", folder.name)
        firmware = _line(folder / "fw_ver")
        names.append(f"{kind} firmware {firmware}" if firmware else kind)
    return _counted(names)


def _ports(root: Path) -> str | None:
    states = []
    for folder in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        state = (_line(folder / "state") or "unknown").partition(": ")  # "4: ACTIVE"
        rate = _line(folder / "rate") or ""
        states.append(f"{state[2] or state[0]} {rate}".strip())
    return _counted(states)


def _kernel_modules(root: Path) -> str | None:
    modules = []
    for name in KERNEL_MODULES:
        folder = root / "sys/module" / name
        if folder.is_dir():
            version = _line(folder / "version")
            modules.append(f"{name} {version}" if version else name)
    return ", ".join(modules) or None


def host_library_facts(root: Path) -> dict[str, str | None]:
    """By kind, what the host offers to NCCL."""
    files = fabric_libraries.host_libraries(root, os.environ)
    facts = {}
    for kind, fact in LIBRARY_FACTS.items():
        facts[fact] = _describe_files(file for file in files if file.kind == kind)
    return facts


def _describe_files(files: Iterable[LibraryFile]) -> str | None:
    return "; ".join(f"{_describe_version(file)} {file.path}" for file in files) or None


def _describe_version(file: LibraryFile) -> str:
    return f"{file.version or 'unknown version'} (build {file.build})"


def system_facts(root: Path) -> FactReaders:
    facts: dict[str, Callable[[], Any]] = {
        "cpus": partial(_cpus, root),
        "memory": partial(_memory, root),
        "governor": partial(_line, root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "huge_pages": partial(_huge_pages, root),
    }
    known = system(root)
    for name in ("arch", "os", "kernel", "glibc"):
        facts[name] = partial(known.get, name)
    return facts


def _cpus(root: Path) -> str:
    text = (root / "proc/cpuinfo").read_text(errors="replace")
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return f"{os.cpu_count()} x {match[1] if match else 'CPU'}"


def _memory(root: Path) -> int | None:
    """Bytes."""
    text = (root / "proc/meminfo").read_text()
    match = re.search(r"^MemTotal:\s*(\d+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _huge_pages(root: Path) -> str | None:
    text = (root / "sys/kernel/mm/transparent_hugepage/enabled").read_text()
    match = re.search(r"\[(\w+)\]", text)  # always [madvise] never
    return match[1] if match else None


def limit_facts() -> dict[str, Any]:
    """Those of this session. A job of Slurm has the submitter's limits, or PropagateResourceLimits."""
    facts: dict[str, Any] = {}
    for name, kind in COUNT_LIMITS.items():
        facts[name] = _limit(kind, 1)
    for name, kind in MEMORY_LIMITS.items():
        facts[name] = _limit(kind, 1024)
    shared_memory = limits.shared_memory()
    facts["shared_memory"] = shared_memory["bytes"] if shared_memory else None
    return facts


def _limit(kind: int, unit: int) -> str:
    soft, hard = resource.getrlimit(kind)
    texts = []
    for value in (soft, hard):
        texts.append("unlimited" if value == resource.RLIM_INFINITY else str(value // unit))
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} (hard {texts[1]})"


def nccl_settings(root: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The settings that NCCL and its transports read, by name: value and source."""
    texts = []
    for path in nccl.files(environment, nccl.home()):
        try:
            texts.append((str(path), (root / str(path).lstrip("/")).read_text(errors="replace")))
        except OSError:
            continue
    settings = {}
    for setting in nccl.effective(environment, texts):
        settings[setting["name"]] = f"{setting['value']} ({setting['source']})"
    for name, value in environment.items():
        if name.startswith(TRANSPORT_PREFIXES):
            settings[name] = f"{value} ({nccl.ENVIRONMENT})"
    return dict(sorted(settings.items()))


def _counted(values: list[str]) -> str | None:
    """`8 x NVIDIA H100 80GB HBM3`."""
    counts = Counter(values)
    return ", ".join(f"{counts[value]} x {value}" for value in sorted(counts)) or None


def _line(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
