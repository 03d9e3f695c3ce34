"""Judges what the driver reports about its GPUs. Pure: facts in, findings out.

Every threshold is NVIDIA's own: a flag or limit that the driver reports, or what the board has by
design (device_models.json, with sources), not a number of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..report.findings import Finding
from .device_models import Model, model_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ..facts.gpu_health import DriverLog, GpuHealth, GpuLinks

# What the driver asks for, in nvidia-smi's and the kernel log's words ("Reset", "GPU Reset Required"),
# and how it is done; the first that fits. nvmlDeviceGpuRecoveryAction_t of NVML 590; 2026-11.
_RECOVERY = (
    ("reboot", "drain the node and reboot it"),
    ("imex", "drain the hosts of this NVLink domain and restart nvidia-imex on all of them"),
    ("bus reset", "drain the node, and reset the GPU's PCIe bus or reboot"),
    ("drain and reset", "end all programs of this host that use NVLink, then reset: nvidia-smi -r"),
    ("drain", "end the programs that use this GPU over NVLink; then see what the driver asks for"),
    ("reset", "end the GPU's programs and reset it: sudo nvidia-smi -r -i INDEX"),
)
# Of a link's rate: NVLink 5 is stated as 50 or 53.125 GB/s.
_SLOW_LINK = 0.9
_BOARD_GPUS = 8
# Of a guest: a part of a GPU, or a whole one.
VGPU, PASS_THROUGH = "VGPU", "Pass-Through"
_PAIR = 2
# The reasons that a fault causes. Others are normal: idle, the power cap under full load.
SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
# NVIDIA's newest release of CUDA of each major version runs on every driver from this one on
# (minor version compatibility; CUDA release notes, table "CUDA Toolkit and Minimum Required Driver
# Version for CUDA Minor Version Compatibility"). A test compares them with the catalog's.
OLDEST_DRIVERS = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}


def gpu_findings(gpus: Sequence[GpuHealth]) -> Iterator[Finding]:
    for gpu in gpus:
        name = f"GPU {gpu.address}"
        if gpu.recovery:
            yield from filter(None, [recovery_finding(gpu.recovery, name)])
        for is_fault, id, text in _states(gpu):
            if is_fault:
                yield Finding(id, f"{name} {text}")
        yield from _limits(name, gpu)
    # A display keeps the driver loaded, too.
    if without := [gpu for gpu in gpus if gpu.persistence is False and not gpu.display]:
        message = f"persistence mode is off for {len(without)} of {len(gpus)} GPUs"
        yield Finding("persistence-off", message)


def _states(gpu: GpuHealth) -> list[tuple[object, str, str]]:
    """What a GPU can report: whether it does, the id, and what is wrong."""
    is_limited = "(Restricted)" in (gpu.license or "")
    is_limited |= gpu.license == "Unlicensed" and gpu.virtualization == VGPU
    without_ecc_later = gpu.ecc is True and gpu.ecc_pending is False
    reasons = [reason for reason in gpu.throttled if reason in SLOWDOWNS]
    at = f" at {gpu.temperature_c:.0f} C" if gpu.temperature_c is not None else ""
    errors = ", ".join(gpu.errors)
    return [
        (gpu.lost, "gpu-lost", "gives the driver no answer"),
        (errors and not gpu.lost, "gpu-driver-errors", f"gives the driver errors for {errors}"),
        (gpu.unreadable, "gpu-state-unknown", f"is unknown here: {', '.join(gpu.unreadable)}"),
        (is_limited, "vgpu-unlicensed", f"is a vGPU that is {gpu.license}"),
        (
            gpu.uncorrectable,
            "gpu-memory-errors",
            f"counts {gpu.uncorrectable} uncorrectable memory errors",
        ),
        (gpu.rows_failed, "gpu-memory-worn", "failed to remap a row of its memory"),
        (gpu.sram_threshold_exceeded, "gpu-memory-worn", "exceeds its threshold of SRAM errors"),
        (gpu.rows_pending, "gpu-memory-pending", "waits to remap a row of its memory"),
        (gpu.pages_pending, "gpu-memory-pending", "waits to retire a memory page"),
        (gpu.channel_repair, "gpu-memory-pending", "waits for a reset: channel_repair_pending"),
        (gpu.tpc_repair, "gpu-memory-pending", "waits for a reset: tpc_repair_pending"),
        (gpu.ecc is False, "gpu-ecc-off", "runs without ECC"),
        (without_ecc_later, "gpu-ecc-off", "will run without ECC after a reset"),
        (reasons, "gpu-throttled", f"is slowed down{at}: {', '.join(reasons)}"),
        (gpu.mig and not gpu.mig_instances, "mig-empty", "is in MIG mode without instances"),
    ]


def recovery_finding(action: str, name: str) -> Finding | None:
    """What the driver asks for, in its words: `None`, `Reset`, `GPU Reset Required`."""
    if action == "None":
        return None
    message = f"the driver asks for a recovery of {name}: {action or 'unreadable'}"
    for token, advice in _RECOVERY:
        if token in action.lower():
            return Finding("gpu-recovery", message, advice=advice)
    return Finding("gpu-state-unknown", message)


def _limits(name: str, gpu: GpuHealth) -> Iterator[Finding]:
    """Clocks, power, and the lanes and generation of PCIe: what GPU and slot can do together, and
    what its board has."""
    model, is_guest = model_of(gpu.product), gpu.virtualization == PASS_THROUGH
    default_w = max(gpu.default_power_limit_w or 0.0, model.get("power_w", 0.0))
    for id, noun, value, default, unit in (
        ("gpu-clocks-limited", "application clock", gpu.clock_mhz, gpu.default_clock_mhz, "MHz"),
        ("gpu-power-limited", "power limit", gpu.power_limit_w, default_w, "W"),
    ):
        if value is not None and value < (default or 0.0):
            yield Finding(
                id, f"the {noun} of {name} is {value:.0f} {unit}; its default is {default:.0f}"
            )
    if gpu.virtualization == VGPU:
        return
    # A guest does not see the slot, which clouds wire with half of a card's lanes.
    hides_slot = model.get("narrow_by_design") or (is_guest and "pcie_lanes" in model)
    lanes = max(0.0 if hides_slot else gpu.max_pcie_lanes or 0.0, model.get("pcie_lanes", 0))
    # The generation under load: an idle link is slower on purpose.
    possible = min(gpu.device_pcie_gen or 0.0, gpu.host_pcie_gen or 0.0)
    if not is_guest:
        possible = max(possible, model.get("pcie_gen", 0))
    if gpu.pcie_lanes and gpu.pcie_lanes < lanes:
        yield Finding("pcie-reduced", f"{name} uses {gpu.pcie_lanes:.0f} of {lanes:.0f} PCIe lanes")
    elif gpu.max_pcie_gen and gpu.max_pcie_gen < possible:
        yield Finding(
            "pcie-reduced",
            f"{name} is limited to PCIe {gpu.max_pcie_gen:.0f}; it should have {possible:.0f}",
        )


def nvlink_findings(
    gpus: Sequence[GpuLinks],
    errors: Mapping[str, Mapping[str, int]],
    health: Sequence[GpuHealth] = (),
) -> Iterator[tuple[Finding, str]]:
    """Each finding with its evidence. A GPU has as many links as its model; of a model that is not
    known, or in a guest with a part of the board, as many as most others of its kind: some boards
    do not wire every link."""
    # A GPU in MIG mode uses no NVLink; partitions of a board get a part of the links or none.
    gpus = [gpu for gpu in gpus if gpu.index >= len(health) or not health[gpu.index].mig]
    modes = {gpu.virtualization for gpu in health}
    is_part = VGPU in modes or (len(health) < _BOARD_GPUS and PASS_THROUGH in modes)
    for gpu in gpus:
        model: Model = {} if is_part else model_of(gpu.product)
        counts = sorted(len(other.active) for other in gpus if other.product == gpu.product)
        # What more than half of them have at least. A link has two ends: of two GPUs, the more.
        usual = counts[-1] if len(counts) == _PAIR else counts[(len(counts) - 1) // 2]
        links = model.get("nvlinks", usual)
        # With three bridges, 12 of the 18 links of an H100 PCIe are active.
        links += -links % model.get("bridge_links", 1)
        slow = min(gpu.active, default=0.0)
        fastest = model.get("nvlink_gb_s", max(gpu.active, default=0.0))
        if gpu.active and slow < fastest * _SLOW_LINK:
            message = f"{gpu.uuid}: an NVLink runs at {slow:g} of {fastest:g} GB/s"
            yield Finding("nvlink-slow", message), message
        if len(gpu.active) < links:
            inactive = [str(link) for link, rate in gpu.rates_gb_s.items() if rate is None]
            which = f"; inactive: {', '.join(inactive)}" if inactive else ""
            message = f"{gpu.uuid}: {len(gpu.active)} of {links} NVLinks are active{which}"
            yield Finding("nvlink-down", message), f"{gpu.line} {message}"
    for uuid, counters in errors.items():
        texts = [f"{name} {count}" for name, count in counters.items()]
        failed = [text for text in texts if "failed" in text]
        message = f"{uuid}: {'; '.join((failed or texts)[:3])}"
        yield Finding("nvlink-recovery" if failed else "nvlink-errors", message), message


def log_findings(log: DriverLog) -> Iterator[Finding]:
    """What the driver printed around its XML, and what is missing of it."""
    for message in log.messages:
        id = "gpu-inforom" if "inforom" in message.lower() else "smi-message"
        if "lost" in message or "device handle" in message:
            id = "gpu-lost"
        yield Finding(id, f"nvidia-smi: {message}")
    whole = [gpu for gpu in log.gpus if gpu.is_whole]
    if not log.is_whole or len(whole) < len(log.gpus):
        yield Finding(
            "smi-incomplete",
            f"nvidia-smi's XML has all of {len(whole)} GPUs only; {log.attached} are attached",
        )


def fabric_findings(log: DriverLog, manager: str | None) -> Iterator[Finding]:
    """manager: the version of the installed fabric manager; None if it is unknown."""
    # GPUs of a host in several NVLink domains cannot reach one another over NVLink.
    domains = sorted({gpu.domain for gpu in log.gpus if gpu.domain})
    if len(domains) >= _PAIR:
        yield Finding("mnnvl-domain", f"the GPUs of this host are in domains {', '.join(domains)}")
    problems = []
    for gpu in log.gpus:
        if gpu.fabric not in (None, "Completed"):
            problems.append(f"the fabric state is {gpu.fabric}")
        elif gpu.fabric_faults:
            problems.append(f"the health of the fabric is {', '.join(gpu.fabric_faults)}")
        elif gpu.fabric and gpu.fabric_status not in (None, "Success"):
            problems.append(f"the fabric status is {gpu.fabric_status}")
    if problems:
        yield Finding("fabric-manager", f"{len(problems)} of {len(log.gpus)} GPUs: {problems[0]}")
    elif manager and log.driver and manager != log.driver:
        yield Finding(
            "fabric-manager", f"the fabric manager is {manager}, but the driver is {log.driver}"
        )


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
