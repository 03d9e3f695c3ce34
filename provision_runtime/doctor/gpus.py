"""Probes: GPUs, their links and driver, and whether containers get them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from ..checks import gpus as judge
from ..checks.kernel_log import kernel_findings
from ..facts import gpu_health, libraries
from ..fs.files import read_text
from .probe import Findings, Limitation, Probes, Result, judged, observation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .machine import Machine

# In /sys: the PCI class of NVSwitches (bridge, other).
NVSWITCH_CLASS = "0x0680"
IMEX_DEVICE = "nvidia-caps-imex-channels"
# Folders in which the container toolkit writes its device specifications (CDI).
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
SMI_QUERY = "nvidia-smi -q -x"


def health(machine: Machine) -> Iterator[Result]:
    """Everything that nvidia-smi reports, in one probe: only that one hangs if the driver does."""
    on_bus = machine.gpus()
    if (output := machine.run("nvidia-smi", *gpu_health.QUERY)) is None:
        if on_bus:
            yield observation(
                "gpu-lost",
                f"{len(on_bus)} NVIDIA GPUs, but no driver: there is no nvidia-smi",
                "/sys/bus/pci/devices",
                on_bus[0]["address"],
            )
        else:
            yield Limitation(
                "no NVIDIA GPU is on the PCI bus, and there is no nvidia-smi: no GPU was examined"
            )
        return
    try:
        log = gpu_health.parse(output.text)
    except ValueError as error:
        # nvidia-smi ended without XML; its message says why.
        id, message = "gpu-lost", f"the driver does not respond: {error}"
        if "Driver/library version mismatch" in message:
            id, message = "driver-mismatch", str(error)
        elif "Unknown Error" in message and "device handle" not in message:
            id, message = "gpu-revoked", f"nvidia-smi: {error}"
        yield observation(id, message, SMI_QUERY, f"status {output.status}: {error}")
        return
    nvidia = [
        path
        for path in machine.glob("/sys/bus/pci/devices", "*")
        if read_text(path / "vendor").strip() == libraries.NVIDIA
    ]
    match = None
    # Only hosts with NVSwitches of their own need a fabric manager.
    if any(read_text(path / "class").startswith(NVSWITCH_CLASS) for path in nvidia):
        match = re.search(r"\d+\.\d+(\.\d+)?", machine.text("nv-fabricmanager", "--version"))
    for finding in (
        *judge.log_findings(log),
        *judge.gpu_findings(log.gpus),
        *judge.fabric_findings(log, match[0] if match else None),
    ):
        yield from judged(finding, SMI_QUERY, finding)
    if output.status and not log.messages:
        yield observation(
            "smi-message",
            f"nvidia-smi ended with status {output.status}, and does not say why",
            SMI_QUERY,
            f"status {output.status}",
        )
    if log.is_whole and len(log.gpus) < len(on_bus):
        message = f"nvidia-smi lists {len(log.gpus)} GPUs, the PCI bus has {len(on_bus)}"
        yield observation(
            "gpu-off-bus",
            message,
            "/sys/bus/pci/devices",
            ", ".join(gpu["address"] for gpu in on_bus),
        )
    for finding, evidence in judge.nvlink_findings(
        gpu_health.parse_nvlinks(machine.text("nvidia-smi", *gpu_health.NVLINK_STATUS)),
        gpu_health.parse_nvlink_errors(machine.text("nvidia-smi", *gpu_health.NVLINK_ERRORS)),
        log.gpus,
    ):
        query = "--status" if finding.id in ("nvlink-down", "nvlink-slow") else "-e"
        yield from judged(finding, f"nvidia-smi nvlink {query}", evidence)
    if any(gpu.domain for gpu in log.gpus):
        yield from _imex_service(machine)


def _imex_service(machine: Machine) -> Findings:
    """The service that lets GPUs of several hosts share memory over NVLink."""
    service = machine.run("nvidia-imex-ctl", "-q")
    domain = machine.run("nvidia-imex-ctl", "-N")
    if service is None or domain is None:
        return
    degraded = re.search(r"Domain State: (?!UP)\w+", domain.text)
    state = degraded[0] if degraded else " ".join(service.text.split())
    if state != "READY":
        yield observation(
            "imex-down",
            f"the IMEX service is not READY: {state or 'no reply'}",
            "nvidia-imex-ctl",
            state,
        )


def logs(machine: Machine) -> Iterator[Result]:
    # Both in seconds after boot, when links come up.
    for command in (("dmesg",), ("journalctl", "-k", "-b", "--no-pager", "-o", "short-monotonic")):
        if (output := machine.run(*command)) is not None and output.status == 0:
            for finding, line in kernel_findings(output.text):
                yield from judged(finding, command[0], line)
            return
    if machine.gpus():
        yield Limitation(
            "the kernel log, where the driver reports faults (Xid), is readable by root only",
            "sudo dmesg -T | grep -i xid",
        )


def compat_library(machine: Machine) -> Findings:
    """A libcuda of a compat folder that the loader takes first, and that is not the driver's."""
    driver = libraries.driver_version(machine.root)
    # Where the loader looks, and where that is configured.
    folders = dict.fromkeys(machine.library_path(), "variable LD_LIBRARY_PATH")
    for file in machine.glob("/etc/ld.so.conf.d", "*.conf"):
        for line in read_text(file).splitlines():
            folders.setdefault(line.strip(), machine.name(file))
    for folder, source in folders.items() if driver else ():
        for path in machine.glob(folder, "libcuda.so.[0-9]*.[0-9]*"):
            if "compat" in folder and path.name != f"libcuda.so.{driver}":
                message = f"{machine.name(path)} comes before the libcuda of driver {driver}"
                yield observation("compat-library", message, source, folder)
                return


def imex(machine: Machine) -> Findings:
    """Multi-node NVLink: the driver offers IMEX channels, and this process has none."""
    # One GPU has nobody to share memory with.
    if len(machine.gpus()) == 1 or machine.variable("NCCL_NVLS_ENABLE") == "0":
        return
    if IMEX_DEVICE in machine.read("/proc/devices") and not machine.glob(
        f"/dev/{IMEX_DEVICE}", "channel*"
    ):
        yield observation(
            "imex-channel",
            f"the driver has IMEX channels, but /dev/{IMEX_DEVICE} has none",
            "/proc/devices",
            IMEX_DEVICE,
        )


def container_runtime(machine: Machine) -> Iterator[Result]:
    if not machine.gpus():
        return
    if (output := machine.run("docker", "info", "--format", "{{json .Runtimes}}")) is None:
        return
    if "permission denied" in output.text:
        yield Limitation("this user may not query the runtimes of Docker", "sudo docker info")
    try:
        runtimes = sorted(json.loads(output.text))
    except ValueError:
        return
    specifications = [path for folder in CDI_FOLDERS for path in machine.glob(folder, "*nvidia*")]
    if "nvidia" not in runtimes and not specifications:
        yield observation(
            "docker-gpu-runtime",
            f"Docker has only the runtimes {', '.join(runtimes)}, and there is no CDI file",
            "docker info",
            ", ".join(runtimes),
        )


PROBES: Probes = {
    "GPUs": health,
    "logs": logs,
    "CUDA compatibility library": compat_library,
    "IMEX channels": imex,
    "GPUs in containers": container_runtime,
}
