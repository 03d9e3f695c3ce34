"""What the driver says about the health of its GPUs: nvidia-smi's XML, and its text about NVLinks.

Parses, and judges nothing. The names of the XML's elements are those of nvsmi_device_v12.dtd, which
`nvidia-smi --dtd` prints, and of the releases before it. What a GPU does not support is None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional
from xml.etree import ElementTree

# Brands for games and workstations leave ECC off unless somebody switches it on: only data center
# brands (NVIDIA, Tesla) have it on (nvidia-smi(1), ECC Mode; RTX A6000 user guide).
ECC_OFF_BY_DEFAULT = re.compile("GeForce|Titan|Quadro|NVIDIA RTX", re.IGNORECASE)
# Virtual machines come without the persistence daemon, and last as long as their job.
VIRTUAL = ("Pass-Through", "VGPU")

QUERY = ("-q", "-x")
NVLINK_STATUS = ("nvlink", "--status")
NVLINK_ERRORS = ("nvlink", "-e")
ABSENT = (
    "",
    "N/A",
    "[N/A]",
    "Not Supported",
    "Unknown Error",
    "ERR!",
    "GPU is lost",
    "Requested functionality has been deprecated",
)
# "GPU 0: NVIDIA GB200 (UUID: GPU-d1b9...)", in NVIDIA/k8s-test-infra#371 and NVIDIA/nccl#1054.
_GPU_LINE = re.compile(r"GPU (\d+):.*\(UUID: (\S+)\)")


@dataclass(frozen=True)
class GpuHealth:
    """lost: the driver prints neither its name nor its UUID.

    uncorrectable: memory errors since the driver was loaded that could not be corrected.

    pcie_lanes: now; max_pcie_lanes: of GPU and slot. max_pcie_gen: what GPU and slot allow together;
    device_pcie_gen, host_pcie_gen: each alone. An idle link has a lower generation on purpose.
    """

    address: str
    lost: bool
    persistence: Optional[bool]
    display: Optional[bool]
    mig: Optional[bool]
    mig_instances: int
    ecc: Optional[bool]
    ecc_pending: Optional[bool]
    uncorrectable: Optional[int]
    sram_threshold_exceeded: Optional[bool]
    pages_pending: Optional[bool]
    rows_pending: Optional[bool]
    rows_failed: Optional[bool]
    throttled: List[str]
    temperature_c: Optional[float]
    clock_mhz: Optional[float]
    default_clock_mhz: Optional[float]
    power_limit_w: Optional[float]
    default_power_limit_w: Optional[float]
    pcie_lanes: Optional[float]
    max_pcie_lanes: Optional[float]
    max_pcie_gen: Optional[float]
    device_pcie_gen: Optional[float]
    host_pcie_gen: Optional[float]
    fabric: str | None
    fabric_status: str | None


@dataclass(frozen=True)
class DriverLog:
    driver: str | None
    gpus: list[GpuHealth]


@dataclass(frozen=True)
class GpuLinks:
    """A GPU by nvidia-smi's index and UUID, and the rate of each NVLink in one direction; None for
    an inactive one."""

    index: int
    uuid: str
    rates_gb_s: dict[int, float | None]


def parse(text: str) -> DriverLog:
    """The output of QUERY. Raises ValueError for anything else."""
    start = text.find("<nvidia_smi_log")
    if start < 0:
        raise ValueError(" ".join(text.split()) or "nvidia-smi printed nothing")
    try:
        log = ElementTree.fromstring(text[start:])
    except ElementTree.ParseError as error:
        raise ValueError(f"nvidia-smi's XML is cut off: {error}") from error
    return DriverLog(_text(log, "driver_version"), [_gpu(gpu) for gpu in log.findall("gpu")])


def _gpu(gpu: ElementTree.Element) -> GpuHealth:
    link = "pci/pci_gpu_link_info"
    # The active reasons, as in `hw_thermal_slowdown`.
    reasons = []
    # nvidia-smi renamed throttle reasons to event reasons in 2023.
    for element in gpu.iter():
        name = re.fullmatch(r"clocks_(?:event|throttle)_reason_(.+)", element.tag)
        if name and (element.text or "").strip() == "Active":
            reasons.append(name[1])
    return GpuHealth(
        address=gpu.get("id", ""),
        lost=_text(gpu, "product_name", "uuid") is None,
        persistence=None
        if gpu.findtext("gpu_virtualization_mode/virtualization_mode") in VIRTUAL
        else _flag(gpu, "persistence_mode"),
        display=_flag(gpu, "display_active"),
        mig=_flag(gpu, "mig_mode/current_mig"),
        mig_instances=len(gpu.findall("mig_devices/mig_device")),
        ecc=None
        if ECC_OFF_BY_DEFAULT.search(gpu.findtext("product_brand", ""))
        else _flag(gpu, "ecc_mode/current_ecc"),
        ecc_pending=_flag(gpu, "ecc_mode/pending_ecc"),
        uncorrectable=_uncorrectable(gpu),
        sram_threshold_exceeded=_flag(gpu, "ecc_errors/aggregate/sram_threshold_exceeded"),
        pages_pending=_flag(
            gpu, "retired_pages/pending_retirement", "retired_pages/pending_blacklist"
        ),
        rows_pending=_flag(gpu, "remapped_rows/remapped_row_pending"),
        rows_failed=_flag(gpu, "remapped_rows/remapped_row_failure"),
        throttled=reasons,
        temperature_c=_number(gpu, "temperature/gpu_temp"),
        clock_mhz=_number(gpu, "applications_clocks/graphics_clock"),
        default_clock_mhz=_number(gpu, "default_applications_clocks/graphics_clock"),
        power_limit_w=_number(
            gpu, "gpu_power_readings/current_power_limit", "power_readings/power_limit"
        ),
        default_power_limit_w=_number(
            gpu, "gpu_power_readings/default_power_limit", "power_readings/default_power_limit"
        ),
        pcie_lanes=_number(gpu, f"{link}/link_widths/current_link_width"),
        max_pcie_lanes=_number(gpu, f"{link}/link_widths/max_link_width"),
        max_pcie_gen=_number(gpu, f"{link}/pcie_gen/max_link_gen"),
        device_pcie_gen=_number(gpu, f"{link}/pcie_gen/max_device_link_gen"),
        host_pcie_gen=_number(gpu, f"{link}/pcie_gen/max_host_link_gen"),
        fabric=_text(gpu, "fabric/state"),
        fabric_status=_text(gpu, "fabric/status"),
    )


def _uncorrectable(gpu: ElementTree.Element) -> int | None:
    volatile = gpu.find("ecc_errors/volatile")
    if volatile is None:
        return None
    names = [element.tag for element in volatile if "uncorrectable" in element.tag]
    # The last: before Turing.
    counts = [_number(volatile, name) for name in [*names, "double_bit/total"]]
    present = [int(count) for count in counts if count is not None]
    return sum(present) if present else None


def _text(element: ElementTree.Element, *paths: str) -> str | None:
    """The text of the first of these elements that a GPU has and supports."""
    for path in paths:
        text = (element.findtext(path) or "").strip()
        if text not in ABSENT:
            return text
    return None


def _flag(element: ElementTree.Element, *paths: str) -> bool | None:
    text = _text(element, *paths)
    return None if text is None else text in ("Enabled", "Yes")


def _number(element: ElementTree.Element, *paths: str) -> float | None:
    """The number that a value begins with: `16x`, `700.00 W`, `34 C`."""
    match = re.match(r"\d+(\.\d+)?", _text(element, *paths) or "")
    return float(match[0]) if match else None


def parse_nvlinks(text: str) -> list[GpuLinks]:
    """The output of NVLINK_STATUS."""
    gpus: list[GpuLinks] = []
    for line in text.splitlines():
        head = _GPU_LINE.match(line)
        if head:
            gpus.append(GpuLinks(int(head[1]), head[2], {}))
        # "Link 3: 26.562 GB/s" or "Link 3: <inactive>".
        link = re.match(r"\s+Link (\d+): (?:([\d.]+) GB/s|<inactive>)", line)
        if link and gpus:
            gpus[-1].rates_gb_s[int(link[1])] = float(link[2]) if link[2] else None
    return gpus


def parse_nvlink_errors(text: str) -> dict[str, dict[str, int]]:
    """The output of NVLINK_ERRORS: by GPU (its UUID) the counters above zero."""
    errors: dict[str, dict[str, int]] = {}
    uuid = ""
    for line in text.splitlines():
        head = _GPU_LINE.match(line)
        if head:
            uuid = head[2]
        # "Link 0: Replay Errors: 0"
        counter = re.match(r"\s+Link (\d+): (.+ Errors): (\d+)", line)
        if counter and uuid and int(counter[3]):
            errors.setdefault(uuid, {})[f"link {counter[1]}: {counter[2]}"] = int(counter[3])
    return errors


def parse_xids(text: str) -> list[tuple[str, int, str]]:
    """Address, number and line of each Xid in a kernel log."""
    # "NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, GPU has fallen off the bus."
    xids = []
    for line in text.splitlines():
        match = re.search(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+)", line)
        if match:
            xids.append((match[1], int(match[2]), line.strip()))
    return xids
