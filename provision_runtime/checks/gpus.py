"""Judges what the driver reports about its GPUs. Pure: facts in, findings out.

Every threshold is NVIDIA's own: a flag or limit that the driver reports, not a number of ours.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ..report.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..facts.gpu_health import DriverLog, GpuHealth, GpuLinks

# Xid numbers that the catalog attributes to hardware or its links, with what they mean:
# https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. Others come from programs
# (13, 31, 43, 45), or are counted elsewhere in the driver's output (63, 92, 94).
HARDWARE_XIDS = {
    48: "uncorrectable memory error",
    62: "internal microcontroller halt",
    64: "row remapping failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    119: "GPU system processor does not respond",
    120: "GPU system processor error",
    140: "unrecovered memory error",
}
# The reasons that a fault causes. Others are normal: idle, the power cap under full load.
SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
# NVIDIA's newest release of CUDA of each major version runs on every driver from this one on
# (minor version compatibility; CUDA release notes, table "CUDA Toolkit and Minimum Required Driver
# Version for CUDA Minor Version Compatibility"). A test compares them with the catalog's.
OLDEST_DRIVERS = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}


def gpu_findings(gpus: Sequence[GpuHealth]) -> list[Finding]:
    findings = []
    for gpu in gpus:
        name = f"GPU {gpu.address}"
        findings += _memory_findings(name, gpu)
        findings += _clock_findings(name, gpu)
        findings += _link_findings(name, gpu)
        if gpu.mig and not gpu.mig_instances:
            findings.append(Finding("mig-empty", f"{name} is in MIG mode without instances"))
    findings += _persistence_findings(gpus)
    return findings


def _memory_findings(name: str, gpu: GpuHealth) -> list[Finding]:
    findings = []
    if gpu.uncorrectable:
        message = f"{name} counts {gpu.uncorrectable} uncorrectable memory errors"
        findings.append(Finding("gpu-memory-errors", message))
    without_ecc_later = gpu.ecc is True and gpu.ecc_pending is False
    for is_fault, id, problem in (
        (gpu.rows_failed, "gpu-memory-worn", "failed to remap a row of its memory"),
        (gpu.sram_threshold_exceeded, "gpu-memory-worn", "exceeds its threshold of SRAM errors"),
        (gpu.rows_pending, "gpu-memory-pending", "waits to remap a row of its memory"),
        (gpu.pages_pending, "gpu-memory-pending", "waits to retire a memory page"),
        (gpu.ecc is False, "gpu-ecc-off", "runs without ECC"),
        (without_ecc_later, "gpu-ecc-off", "will run without ECC after a reset"),
    ):
        if is_fault:
            findings.append(Finding(id, f"{name} {problem}"))
    return findings


def _clock_findings(name: str, gpu: GpuHealth) -> list[Finding]:
    findings = []
    reasons = [reason for reason in gpu.throttled if reason in SLOWDOWNS]
    if reasons:
        at = f" at {gpu.temperature_c:.0f} C" if gpu.temperature_c is not None else ""
        message = f"{name} is slowed down{at}: {', '.join(reasons)}"
        findings.append(Finding("gpu-throttled", message))
    for id, noun, value, default, unit in (
        ("gpu-clocks-limited", "application clock", gpu.clock_mhz, gpu.default_clock_mhz, "MHz"),
        ("gpu-power-limited", "power limit", gpu.power_limit_w, gpu.default_power_limit_w, "W"),
    ):
        if value is not None and default is not None and value < default:
            message = f"the {noun} of {name} is {value:.0f} {unit}; its default is {default:.0f}"
            findings.append(Finding(id, message))
    return findings


def _link_findings(name: str, gpu: GpuHealth) -> list[Finding]:
    lanes, max_lanes, max_gen = gpu.pcie_lanes, gpu.max_pcie_lanes, gpu.max_pcie_gen
    if lanes and max_lanes and lanes < max_lanes:
        message = f"{name} uses {lanes:.0f} of {max_lanes:.0f} PCIe lanes"
        return [Finding("pcie-reduced", message)]
    # The generation under load: an idle link is slower on purpose.
    possible = min(filter(None, (gpu.device_pcie_gen, gpu.host_pcie_gen)), default=None)
    if max_gen and possible and max_gen < possible:
        message = f"{name} is limited to PCIe {max_gen:.0f}; it and its slot can do {possible:.0f}"
        return [Finding("pcie-reduced", message)]
    return []


def _persistence_findings(gpus: Sequence[GpuHealth]) -> list[Finding]:
    """A display keeps the driver loaded, too."""
    without = [gpu.address for gpu in gpus if gpu.persistence is False and not gpu.display]
    if not without:
        return []
    message = f"persistence mode is off for {len(without)} of {len(gpus)} GPUs"
    return [Finding("persistence-off", message)]


def nvlink_findings(
    gpus: Sequence[GpuLinks], errors: Mapping[str, Mapping[str, int]]
) -> list[Finding]:
    """A link is down if it is inactive on one GPU, but active on most of the others: some boards do
    not wire every link."""
    findings = []
    active: Counter[int] = Counter()
    for gpu in gpus:
        active.update(link for link, rate in gpu.rates_gb_s.items() if rate is not None)
    for gpu in gpus:
        down = []
        for link, rate in gpu.rates_gb_s.items():
            if rate is None and active[link] * 2 > len(gpus):
                down.append(str(link))
        if down:
            message = f"{gpu.uuid}: NVLink {', '.join(down)} is inactive"
            findings.append(Finding("nvlink-down", message))
    for uuid, counters in errors.items():
        texts = [f"{name} {count}" for name, count in counters.items()]
        findings.append(Finding("nvlink-errors", f"{uuid}: {'; '.join(texts[:3])}"))
    return findings


def xid_findings(xids: Sequence[tuple[str, int, str]]) -> list[Finding]:
    """One finding for each GPU and number."""
    findings = []
    counts = Counter((address, number) for address, number, _ in xids if number in HARDWARE_XIDS)
    for (address, number), count in sorted(counts.items()):
        times = "once" if count == 1 else f"{count} times"
        message = f"Xid {number} ({HARDWARE_XIDS[number]}) {times} on {address}"
        findings.append(Finding("gpu-xid", message))
    return findings


def fabric_finding(log: DriverLog, manager: str | None) -> Finding | None:
    """manager: the version of the installed fabric manager; None if it is unknown."""
    message = ""
    states = [gpu.fabric for gpu in log.gpus if gpu.fabric not in (None, "Completed")]
    failed = []
    for gpu in log.gpus:
        if gpu.fabric and gpu.fabric_status not in (None, "Success"):
            failed.append(gpu.fabric_status)
    if states:
        message = f"the fabric state of {len(states)} of {len(log.gpus)} GPUs is {states[0]}"
    elif failed:
        message = f"the fabric status of {len(failed)} GPUs is {failed[0]}"
    elif manager and log.driver and manager != log.driver:
        message = f"the fabric manager is {manager}, but the driver is {log.driver}"
    return Finding("fabric-manager", message) if message else None


def driver_finding(driver: str | None, cuda: str | None) -> Finding | None:
    """cuda: that torch is built for."""
    if driver is None or cuda is None:
        return None
    oldest = OLDEST_DRIVERS.get(int(cuda.split(".")[0]))
    version = tuple(int(number) for number in driver.split("."))
    if oldest is None or version >= oldest:
        return None
    floor = ".".join(f"{number:02}" for number in oldest)
    return Finding("driver-old", f"the driver is {driver}; CUDA {cuda} needs {floor} or newer")
