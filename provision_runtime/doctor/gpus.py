"""Probes: GPUs, their links and driver, and whether containers get them."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

from ..checks import gpus as judge
from ..checks.kernel_log import kernel_findings
from ..facts import gpu_health, libraries
from ..fs.files import read_text
from ..report.findings import BY_AREA
from .probe import Findings, Limitation, Probe, judged, observation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .machine import Machine
    from .probe import Result

# In /sys: the PCI class of NVSwitches (bridge, other).
NVSWITCH_CLASS = "0x0680"
# Without persistence mode the driver needs seconds to wake the GPUs.
SMI_S = 10.0
IMEX_DEVICE = "nvidia-caps-imex-channels"
# Folders in which the container toolkit writes its device specifications (CDI).
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
SMI_QUERY = "nvidia-smi -q -x"


def health(machine: Machine) -> Iterator[Result]:
    """Everything that nvidia-smi reports, in one probe: only that one hangs if the driver does."""
    on_bus = libraries.pci_gpus(machine.root)
    output = machine.run("nvidia-smi", *gpu_health.QUERY, timeout_s=SMI_S)
    if output is None:
        if on_bus:
            message = f"{len(on_bus)} NVIDIA GPUs, but no driver: there is no nvidia-smi"
            yield observation("gpu-lost", message, "/sys/bus/pci/devices", on_bus[0]["address"])
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
    devices = machine.glob("/sys/bus/pci/devices", "*")
    nvidia = [path for path in devices if read_text(path / "vendor").strip() == libraries.NVIDIA]
    manager = None
    # Only hosts with NVSwitches of their own need a fabric manager.
    if any(read_text(path / "class").startswith(NVSWITCH_CLASS) for path in nvidia):
        manager = machine.run("nv-fabricmanager", "--version")
    match = re.search(r"\d+\.\d+(\.\d+)?", manager.text) if manager else None
    for finding in (
        *judge.log_findings(log),
        *judge.gpu_findings(log.gpus),
        *judge.fabric_findings(log, match[0] if match else None),
    ):
        yield from judged(finding, SMI_QUERY, finding)
    if output.status and not log.messages:
        message = f"nvidia-smi ended with status {output.status}, and does not say why"
        yield observation("smi-message", message, SMI_QUERY, f"status {output.status}")
    if log.is_whole and len(log.gpus) < len(on_bus):
        message = f"nvidia-smi lists {len(log.gpus)} GPUs, the PCI bus has {len(on_bus)}"
        addresses = ", ".join(gpu["address"] for gpu in on_bus)
        yield observation("gpu-off-bus", message, "/sys/bus/pci/devices", addresses)
    yield from _links(machine, log)
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
        message = f"the IMEX service is not READY: {state or 'no reply'}"
        yield observation("imex-down", message, "nvidia-imex-ctl", state)


def _links(machine: Machine, log: gpu_health.DriverLog) -> Findings:
    status = machine.run("nvidia-smi", *gpu_health.NVLINK_STATUS, timeout_s=SMI_S)
    errors = machine.run("nvidia-smi", *gpu_health.NVLINK_ERRORS, timeout_s=SMI_S)
    for finding, evidence in judge.nvlink_findings(
        gpu_health.parse_nvlinks(status.text if status else ""),
        gpu_health.parse_nvlink_errors(errors.text if errors else ""),
        log.gpus,
    ):
        query = "--status" if finding.id in ("nvlink-down", "nvlink-slow") else "-e"
        yield from judged(finding, f"nvidia-smi nvlink {query}", evidence)


def logs(machine: Machine) -> Iterator[Result]:
    # Both in seconds after boot, when links come up.
    for command in (("dmesg",), ("journalctl", "-k", "-b", "--no-pager", "-o", "short-monotonic")):
        output = machine.run(*command)
        if output is not None and output.status == 0:
            for finding, line in kernel_findings(output.text):
                yield from judged(finding, command[0], line)
            return
    if libraries.pci_gpus(machine.root):
        message = "the kernel log, where the driver reports faults (Xid), is readable by root only"
        yield Limitation(message, "sudo dmesg -T | grep -i xid")


def compat_library(machine: Machine) -> Findings:
    """A libcuda of a compat folder that the loader takes first, and that is not the driver's."""
    driver = libraries.driver_version(machine.root)
    if driver is None:
        return
    for folder, source in _library_folders(machine):
        for path in machine.glob(folder, "libcuda.so.[0-9]*.[0-9]*"):
            version = path.name[len("libcuda.so.") :]
            if "compat" in folder and version != driver:
                message = f"{machine.name(path)} comes before the libcuda of driver {driver}"
                yield observation("compat-library", message, source, folder)
                return


def _library_folders(machine: Machine) -> Iterator[tuple[str, str]]:
    """The folders in which the loader looks, each with where it is configured."""
    for folder in machine.environment.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":"):
        if os.path.isabs(folder):
            yield folder, "variable LD_LIBRARY_PATH"
    for file in machine.glob("/etc/ld.so.conf.d", "*.conf"):
        for line in file.read_text(errors="replace").splitlines():
            if os.path.isabs(line.strip()):
                yield line.strip(), machine.name(file)


def imex(machine: Machine) -> Findings:
    """Multi-node NVLink: the driver offers IMEX channels, and this process has none."""
    # One GPU has nobody to share memory with.
    is_alone = len(libraries.pci_gpus(machine.root)) == 1
    if is_alone or machine.environment.get("NCCL_NVLS_ENABLE") == "0":
        return
    if IMEX_DEVICE in machine.read("/proc/devices") and not machine.glob(
        f"/dev/{IMEX_DEVICE}", "channel*"
    ):
        message = f"the driver has IMEX channels, but /dev/{IMEX_DEVICE} has none"
        yield observation("imex-channel", message, "/proc/devices", IMEX_DEVICE)


def container_runtime(machine: Machine) -> Iterator[Result]:
    if not libraries.pci_gpus(machine.root):
        return
    output = machine.run("docker", "info", "--format", "{{json .Runtimes}}")
    if output is None:
        return
    if "permission denied" in output.text:
        yield Limitation("this user may not query the runtimes of Docker", "sudo docker info")
    try:
        runtimes = sorted(json.loads(output.text))
    except ValueError:
        return
    specifications = [path for folder in CDI_FOLDERS for path in machine.glob(folder, "*nvidia*")]
    if "nvidia" not in runtimes and not specifications:
        message = f"Docker has only the runtimes {', '.join(runtimes)}, and there is no CDI file"
        yield observation("docker-gpu-runtime", message, "docker info", ", ".join(runtimes))


PROBES = (
    Probe("GPUs", ("gpu-lost", *BY_AREA["GPUs"]), health, deadline_s=SMI_S),
    Probe("logs", tuple(BY_AREA["logs of kernel and drivers"]), logs),
    Probe("CUDA compatibility library", ("compat-library",), compat_library),
    Probe("IMEX channels", ("imex-channel",), imex),
    Probe("GPUs in containers", ("docker-gpu-runtime",), container_runtime),
)
