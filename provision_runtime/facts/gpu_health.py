"""What the driver says about the health of its GPUs: nvidia-smi's XML, and its text about NVLinks.

Parses, and judges nothing. The names of the XML's elements are those of nvsmi_device_v12.dtd, which
`nvidia-smi --dtd` prints, and of the releases before it. What a GPU does not support is None.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

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
# nvidia-smi renamed throttle reasons to event reasons in 2023.
REASON_PREFIXES = ("clocks_event_reason_", "clocks_throttle_reason_")


def parse(text: str) -> dict[str, Any]:
    """The answer to QUERY. Raises ValueError for anything else."""
    start = text.find("<nvidia_smi_log")
    if start < 0:
        raise ValueError(" ".join(text.split()) or "nvidia-smi printed nothing")
    try:
        log = ElementTree.fromstring(text[start:])
    except ElementTree.ParseError as error:
        raise ValueError(f"nvidia-smi's XML is cut off: {error}") from error
    return {
        "driver": _text(log, "driver_version"),
        "cuda": _text(log, "cuda_version"),
        "gpus": [_gpu(element) for element in log.findall("gpu")],
    }


def _gpu(gpu: ElementTree.Element) -> dict[str, Any]:
    return {
        "address": gpu.get("id"),
        "name": _text(gpu, "product_name"),
        "uuid": _text(gpu, "uuid"),
        "persistence": _flag(gpu, "persistence_mode"),
        "display": _flag(gpu, "display_active"),
        "mig": _flag(gpu, "mig_mode/current_mig"),
        "mig_instances": len(gpu.findall("mig_devices/mig_device")),
        "ecc": _flag(gpu, "ecc_mode/current_ecc"),
        "ecc_pending": _flag(gpu, "ecc_mode/pending_ecc"),
        "uncorrectable": _uncorrectable(gpu),
        "sram_threshold_exceeded": _flag(gpu, "ecc_errors/aggregate/sram_threshold_exceeded"),
        "pages_pending": _pages_pending(gpu),
        "rows_pending": _flag(gpu, "remapped_rows/remapped_row_pending"),
        "rows_failed": _flag(gpu, "remapped_rows/remapped_row_failure"),
        "throttled": _throttle_reasons(gpu),
        "temperature_c": _number(gpu, "temperature/gpu_temp"),
        "clock_mhz": _number(gpu, "applications_clocks/graphics_clock"),
        "default_clock_mhz": _number(gpu, "default_applications_clocks/graphics_clock"),
        "power_limit_w": _first_number(
            gpu, "gpu_power_readings/current_power_limit", "power_readings/power_limit"
        ),
        "default_power_limit_w": _first_number(
            gpu, "gpu_power_readings/default_power_limit", "power_readings/default_power_limit"
        ),
        "pcie": _pcie(gpu),
        "fabric": _text(gpu, "fabric/state"),
        "fabric_status": _text(gpu, "fabric/status"),
    }


def _uncorrectable(gpu: ElementTree.Element) -> int | None:
    """Memory errors since the driver was loaded that could not be corrected."""
    volatile = gpu.find("ecc_errors/volatile")
    if volatile is None:
        return None
    counts = []
    for element in volatile:
        if "uncorrectable" in element.tag:
            count = _number(volatile, element.tag)
            counts += [] if count is None else [int(count)]
    # Before Turing: double_bit/total.
    total = _number(volatile, "double_bit/total")
    if total is not None:
        counts.append(int(total))
    return sum(counts) if counts else None


def _pages_pending(gpu: ElementTree.Element) -> bool | None:
    for name in ("pending_retirement", "pending_blacklist"):
        flag = _flag(gpu, f"retired_pages/{name}")
        if flag is not None:
            return flag
    return None


def _throttle_reasons(gpu: ElementTree.Element) -> list[str]:
    """The active reasons, as in `hw_thermal_slowdown`."""
    reasons = []
    for parent in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for element in gpu.findall(f"{parent}/*"):
            if (element.text or "").strip() != "Active":
                continue
            for prefix in REASON_PREFIXES:
                if element.tag.startswith(prefix):
                    reasons.append(element.tag[len(prefix) :])
    return reasons


def _pcie(gpu: ElementTree.Element) -> dict[str, float | None]:
    """width: lanes now; width_max: of GPU and slot. gen_max: what GPU and slot allow together;
    gen_device, gen_host: of each. A link that is idle has a lower generation than under load."""
    link = "pci/pci_gpu_link_info"
    return {
        "width": _number(gpu, f"{link}/link_widths/current_link_width"),
        "width_max": _number(gpu, f"{link}/link_widths/max_link_width"),
        "gen": _number(gpu, f"{link}/pcie_gen/current_link_gen"),
        "gen_max": _number(gpu, f"{link}/pcie_gen/max_link_gen"),
        "gen_device": _number(gpu, f"{link}/pcie_gen/max_device_link_gen"),
        "gen_host": _number(gpu, f"{link}/pcie_gen/max_host_link_gen"),
    }


def _text(element: ElementTree.Element, path: str) -> str | None:
    text = (element.findtext(path) or "").strip()
    return None if text in ABSENT else text


def _flag(element: ElementTree.Element, path: str) -> bool | None:
    text = _text(element, path)
    return None if text is None else text in ("Enabled", "Yes")


def _number(element: ElementTree.Element, path: str) -> float | None:
    """The number that a value begins with: `16x`, `700.00 W`, `34 C`."""
    match = re.match(r"\d+(\.\d+)?", _text(element, path) or "")
    return float(match[0]) if match else None


def _first_number(element: ElementTree.Element, *paths: str) -> float | None:
    for path in paths:
        number = _number(element, path)
        if number is not None:
            return number
    return None


def parse_nvlinks(text: str) -> dict[str, dict[int, bool]]:
    """The answer to NVLINK_STATUS: by GPU (its UUID) whether each of its links is active."""
    links: dict[str, dict[int, bool]] = {}
    uuid = ""
    for line in text.splitlines():
        head = re.match(r"GPU \d+:.*\(UUID: (\S+)\)", line)
        if head:
            uuid = head[1]
            links[uuid] = {}
        # "Link 3: 26.562 GB/s" or "Link 3: <inactive>".
        link = re.match(r"\s+Link (\d+): (.+)", line)
        if link and uuid:
            links[uuid][int(link[1])] = "inactive" not in link[2]
    return links


def parse_nvlink_errors(text: str) -> dict[str, dict[str, int]]:
    """The answer to NVLINK_ERRORS: by GPU (its UUID) the counters above zero."""
    errors: dict[str, dict[str, int]] = {}
    uuid = ""
    for line in text.splitlines():
        head = re.match(r"GPU \d+:.*\(UUID: (\S+)\)", line)
        if head:
            uuid = head[1]
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
