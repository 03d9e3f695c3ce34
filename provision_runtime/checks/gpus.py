"""Judges what the driver says about its GPUs. Pure: facts in, findings out.

Every threshold is NVIDIA's own: a flag or limit that the driver reports, not a number of ours.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ..report.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Xid numbers that the catalog attributes to hardware or its links, with what they mean:
# https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. Others come from programs
# (13, 31, 43, 45), or are counted elsewhere in the driver's answer (63, 92, 94).
HARDWARE_XIDS = {
    48: "uncorrectable memory error",
    62: "internal microcontroller halt",
    64: "row remapping failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    119: "GPU system processor does not answer",
    120: "GPU system processor error",
    140: "unrecovered memory error",
}
# The reasons that a fault causes. Others are normal: idle, the power cap under full load.
SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
# NVIDIA's newest release of CUDA of each major version runs on every driver from this one on
# (minor version compatibility; CUDA release notes, table "CUDA Toolkit and Minimum Required Driver
# Version for CUDA Minor Version Compatibility"). A test compares them with the catalog's.
OLDEST_DRIVERS = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}


def gpu_findings(gpus: Sequence[Mapping[str, Any]]) -> list[Finding]:
    findings = []
    for gpu in gpus:
        name = f"GPU {gpu['address']}"
        findings += _memory_findings(name, gpu)
        findings += _clock_findings(name, gpu)
        findings += _link_findings(name, gpu)
        if gpu["mig"] and not gpu["mig_instances"]:
            findings.append(Finding("mig-empty", f"{name} is in MIG mode without instances"))
    findings += _persistence_findings(gpus)
    return findings


def _memory_findings(name: str, gpu: Mapping[str, Any]) -> list[Finding]:
    findings = []
    if gpu["uncorrectable"]:
        message = f"{name} counts {gpu['uncorrectable']} uncorrectable memory errors"
        findings.append(Finding("gpu-memory-errors", message))
    if gpu["rows_failed"]:
        findings.append(Finding("gpu-memory-worn", f"{name} failed to remap a row of its memory"))
    if gpu["sram_threshold_exceeded"]:
        message = f"{name} says that the threshold of SRAM errors is exceeded"
        findings.append(Finding("gpu-memory-worn", message))
    if gpu["rows_pending"]:
        findings.append(Finding("gpu-memory-pending", f"{name} waits to remap a row of its memory"))
    if gpu["pages_pending"]:
        findings.append(Finding("gpu-memory-pending", f"{name} waits to retire a memory page"))
    if gpu["ecc"] is False:
        findings.append(Finding("gpu-ecc-off", f"{name} runs without ECC"))
    elif gpu["ecc"] and gpu["ecc_pending"] is False:
        findings.append(Finding("gpu-ecc-off", f"{name} will run without ECC after a reset"))
    return findings


def _clock_findings(name: str, gpu: Mapping[str, Any]) -> list[Finding]:
    findings = []
    reasons = [reason for reason in gpu["throttled"] if reason in SLOWDOWNS]
    if reasons:
        at = f" at {gpu['temperature_c']:.0f} C" if gpu["temperature_c"] is not None else ""
        findings.append(
            Finding("gpu-throttled", f"{name} is slowed down{at}: {', '.join(reasons)}")
        )
    clock, default = gpu["clock_mhz"], gpu["default_clock_mhz"]
    if clock is not None and default is not None and clock < default:
        message = (
            f"the application clock of {name} is {clock:.0f} MHz; its default is {default:.0f}"
        )
        findings.append(Finding("gpu-clocks-limited", message))
    power, default_power = gpu["power_limit_w"], gpu["default_power_limit_w"]
    if power is not None and default_power is not None and power < default_power:
        message = (
            f"the power limit of {name} is {power:.0f} W; its default is {default_power:.0f} W"
        )
        findings.append(Finding("gpu-power-limited", message))
    return findings


def _link_findings(name: str, gpu: Mapping[str, Any]) -> list[Finding]:
    pcie = gpu["pcie"]
    if pcie["width"] and pcie["width_max"] and pcie["width"] < pcie["width_max"]:
        message = f"{name} uses {pcie['width']:.0f} of {pcie['width_max']:.0f} PCIe lanes"
        return [Finding("pcie-reduced", message)]
    # The generation under load: an idle link is slower on purpose.
    possible = min(filter(None, (pcie["gen_device"], pcie["gen_host"])), default=None)
    if pcie["gen_max"] and possible and pcie["gen_max"] < possible:
        message = f"{name} is limited to PCIe {pcie['gen_max']:.0f}; it and its slot can do {possible:.0f}"
        return [Finding("pcie-reduced", message)]
    return []


def _persistence_findings(gpus: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """A display keeps the driver loaded, too."""
    without = [gpu["address"] for gpu in gpus if gpu["persistence"] is False and not gpu["display"]]
    if not without:
        return []
    message = f"persistence mode is off for {len(without)} of {len(gpus)} GPUs"
    return [Finding("persistence-off", message)]


def nvlink_findings(
    links: Mapping[str, Mapping[int, bool]], errors: Mapping[str, Mapping[str, int]]
) -> list[Finding]:
    """A link is down if it is inactive on one GPU, but active on most of the others: some boards do
    not wire every link."""
    findings = []
    active = Counter(link for states in links.values() for link, is_up in states.items() if is_up)
    for uuid, states in links.items():
        down = [
            link for link, is_up in states.items() if not is_up and active[link] * 2 > len(links)
        ]
        if down:
            numbers = ", ".join(str(link) for link in down)
            findings.append(Finding("nvlink-down", f"{uuid}: NVLink {numbers} is inactive"))
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


def fabric_finding(
    gpus: Sequence[Mapping[str, Any]], driver: str | None, manager: str | None
) -> Finding | None:
    """manager: the version of the installed fabric manager; None if it is unknown."""
    states = Counter(gpu["fabric"] for gpu in gpus if gpu["fabric"] not in (None, "Completed"))
    if states:
        state, count = states.most_common(1)[0]
        message = f"the fabric state of {count} of {len(gpus)} GPUs is {state}"
        return Finding("fabric-manager", message)
    failed = [
        gpu for gpu in gpus if gpu["fabric"] and gpu["fabric_status"] not in (None, "Success")
    ]
    if failed:
        message = f"the fabric status of {len(failed)} GPUs is {failed[0]['fabric_status']}"
        return Finding("fabric-manager", message)
    if manager is not None and driver is not None and manager != driver:
        return Finding(
            "fabric-manager", f"the fabric manager is {manager}, but the driver is {driver}"
        )
    return None


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
