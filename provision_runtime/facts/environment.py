"""Facts about this environment: Python, torch, CUDA, NCCL, GPUs, and what may contaminate it.

Collects, and judges nothing. It must not need what it diagnoses, so it also works if torch is
missing or broken: `error` is then the reason. `collect_in_child` also survives an import that
crashes or hangs.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from . import libraries, limits, nccl, origins
from .digests import read_marker
from .model import DeviceFacts, EnvironmentFacts, TorchFacts

SCHEMA = 2
# Only these variables are reported: they change which files are imported or loaded, or how.
VARIABLES = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONNOUSERSITE",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "GLOO_SOCKET_IFNAME",
)
# A cold import of torch from a network file system was seen to take minutes.
IMPORT_TIMEOUT_S = 300


def collect() -> EnvironmentFacts:
    """All facts; imports torch into this process."""
    facts = host_facts()
    try:
        torch = facts["torch"] = torch_facts()
        versions = torch["nccl"]
        version = versions["loaded"] or versions["compiled"]
        facts["nccl_settings"] = nccl.settings(version)
        names = [setting["name"] for setting in facts["nccl_settings"]]
        facts["nccl_mistyped"] = nccl.mistyped(names, versions["file"] or "")
    except Exception as error:  # a broken torch may raise anything
        facts["error"] = f"torch cannot be used: {type(error).__name__}: {error}"
    # Last, since importing torch is what loads foreign libraries.
    facts["libraries"] = origins.library_facts()
    facts["user_site"] = origins.user_site_facts()
    facts["pythonpath"] = origins.pythonpath_facts()
    return facts


def collect_in_child() -> EnvironmentFacts:
    """All facts, from a child process: if importing torch crashes or hangs, `error` says so."""
    package = str(Path(__file__).resolve().parent.parent)
    try:
        child = subprocess.run(
            [sys.executable, "-B", package, "facts", "--in-process"],
            stdout=subprocess.PIPE,
            timeout=IMPORT_TIMEOUT_S,
        )
        facts: EnvironmentFacts = json.loads(child.stdout)
        return facts
    except subprocess.TimeoutExpired:
        error = f"importing torch did not end within {IMPORT_TIMEOUT_S} s"
    except ValueError:
        error = f"importing torch ended the process with status {child.returncode}"
    return {**host_facts(), "error": error}


def host_facts() -> EnvironmentFacts:
    """The facts that need no torch. Libraries and modules are empty until torch was imported."""
    return {
        "schema": SCHEMA,
        "python": {
            "version": platform.python_version(),
            "executable": sys.executable,
            "prefix": sys.prefix,
        },
        "host": socket.gethostname(),
        "platform": {"machine": platform.machine()},
        "limits": limits.collect(),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "nccl_settings": nccl.settings(),
        "nccl_mistyped": {},
        "lock_hash": lock_hash(),
        "driver": libraries.driver_version(),
        "device_nodes": libraries.device_nodes(),
        "pci_gpus": libraries.pci_gpus(),
        "torch": None,
        "error": None,
        "libraries": origins.library_facts(),
        "user_site": origins.user_site_facts(),
        "pythonpath": origins.pythonpath_facts(),
    }


def torch_facts() -> TorchFacts:
    import torch

    nccl_file = libraries.nccl_file(libraries.loaded())
    # The architectures that the build has code for. torch.cuda.get_arch_list() is empty without
    # a GPU; the flags are not.
    devices: list[DeviceFacts] = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        devices.append(
            {
                "index": index,
                "name": properties.name,
                "uuid": libraries.gpu_uuid(index),
                "architecture": f"sm_{properties.major}{properties.minor}",
            }
        )
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)()
    return {
        "version": str(torch.__version__),
        "file": torch.__file__,
        "cuda": torch.version.cuda,
        "nccl": {
            "compiled": _nccl_compiled(torch),
            "loaded": libraries.nccl_version(nccl_file) if nccl_file else None,
            "file": nccl_file,
        },
        "arch_list": flags.split() if flags else [],
        "cuda_available": bool(torch.cuda.is_available()),
        "device_count": int(torch.cuda.device_count()),
        "devices": devices,
        "distributed": bool(torch.distributed.is_available()),
    }


def lock_hash() -> str | None:
    """The hash of the lock from which this prefix was made.

    The variable is only the fallback: it may come from another environment.
    """
    try:
        lock_sha256 = read_marker(sys.prefix).get("lock_sha256")
    except OSError:
        lock_sha256 = None
    return lock_sha256 if isinstance(lock_sha256, str) else os.environ.get("PROVISION_LOCK_HASH")


def runtime_digest(packages: Path) -> str:
    """Of our own package in a folder of packages: two commits have one version. Empty if pip did not
    install it."""
    for path in packages.glob("provision_runtime-*.dist-info/RECORD"):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return ""


def _nccl_compiled(torch: Any) -> str | None:
    """The version in the header that torch was compiled with: a constant, so no GPU is needed."""
    try:
        version = torch.cuda.nccl.version()
    except (AttributeError, RuntimeError):  # CPU builds lack the function
        return None
    if isinstance(version, tuple):
        return ".".join(str(part) for part in version[:3])
    return libraries.decode_nccl(version)
