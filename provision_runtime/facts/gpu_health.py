"""What the driver says about the health of its GPUs: nvidia-smi's XML, and its text about NVLinks.

Parses, and judges nothing. The names of the XML's elements are those of nvsmi_device_v12.dtd, which
`nvidia-smi --dtd` prints, and of the releases before it. What a GPU does not support is None.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Dict, List, Optional
from xml.etree import ElementTree

from ..dataclass import frozen

# Brands for games and workstations leave ECC off unless somebody switches it on: only data center
# brands (NVIDIA, Tesla) have it on (nvidia-smi(1), ECC Mode; RTX A6000 user guide). Nor do they come
# with the persistence daemon.
WORKSTATION = re.compile("GeForce|Titan|Quadro|NVIDIA RTX", re.IGNORECASE)
# Virtual machines come without the persistence daemon, and last as long as their job.
VIRTUAL = ("Pass-Through", "VGPU")

QUERY = ("-q", "-x")
NVLINK_STATUS = ("nvlink", "--status")
NVLINK_ERRORS = ("nvlink", "-e")
# Words of the driver in the place of a value, without brackets: there is none, or it got an error.
ABSENT = ("", "N/A", "Not Supported", "Requested functionality has been deprecated")
REFUSED = ("Insufficient Permissions", "Not Found", "Unknown")
ERRORS = ("ERR!", "Unknown Error")
LOST = "GPU is lost"
RESET_REQUIRED = "GPU requires reset"
NO_VALUE = (*ABSENT, *REFUSED, *ERRORS, LOST, RESET_REQUIRED)
YES = ("Enabled", "Yes", "True", "Active")
NO = ("Disabled", "No", "False", "Not Active", "Inactive", "None")
FABRIC_STATES = ("Completed", "In Progress", "Not Started")
FABRIC_HEALTHY = ("Full", "Healthy", *NO)
FABRIC_FAULTS = ("Degraded", "Unhealthy", "Limited Capacity", *YES)
# "GPU 0: NVIDIA GB200 (UUID: GPU-d1b9...)", in NVIDIA/k8s-test-infra#371 and NVIDIA/nccl#1054.
_GPU_LINE = re.compile(r"GPU (\d+): ?(.*?) ?\(UUID: (\S+)\)")
# A line of standard error, which can also come in the middle of a tag; XML that is no tag is a value
# on a line of its own.
_MESSAGE = re.compile(r"WARNING:[^\n<]*\n?|^(?![ \t]*(?:None|N/A)?[ \t]*$)[^<>\n]+(?:\n|\Z)", re.M)
# None: a GPU does not support it, or the driver did not say.
Flag = Optional[bool]
Number = Optional[float]
Text = Optional[str]
# Fields of GpuHealth, and the elements that have them: the first that a GPU has and supports.
_FIELDS = """
flag persistence persistence_mode
flag display display_active
flag mig mig_mode/current_mig
flag ecc ecc_mode/current_ecc
flag ecc_pending ecc_mode/pending_ecc
flag sram_threshold_exceeded ecc_errors/aggregate/sram_threshold_exceeded
flag pages_pending retired_pages/pending_retirement retired_pages/pending_blacklist
flag rows_pending remapped_rows/remapped_row_pending
flag rows_failed remapped_rows/remapped_row_failure
flag channel_repair .//channel_repair_pending
flag tpc_repair .//tpc_repair_pending
number temperature_c temperature/gpu_temp
number clock_mhz applications_clocks/graphics_clock
number default_clock_mhz default_applications_clocks/graphics_clock
number power_limit_w gpu_power_readings/current_power_limit power_readings/power_limit
number default_power_limit_w gpu_power_readings/default_power_limit power_readings/default_power_limit
number pcie_lanes pci/pci_gpu_link_info/link_widths/current_link_width
number max_pcie_lanes pci/pci_gpu_link_info/link_widths/max_link_width
number max_pcie_gen pci/pci_gpu_link_info/pcie_gen/max_link_gen
number device_pcie_gen pci/pci_gpu_link_info/pcie_gen/max_device_link_gen
number host_pcie_gen pci/pci_gpu_link_info/pcie_gen/max_host_link_gen
text product product_name
text virtualization gpu_virtualization_mode/virtualization_mode
text license vgpu_software_licensed_product/license_status grid_licensed_product/license_status
"""


@frozen
class GpuHealth:
    """lost: the driver prints neither its name nor its UUID, or says so.

    recovery: what the driver asks for, `None` if nothing; RESET_REQUIRED if it prints that in the
    place of values. domain: cluster and clique of a fabric that reaches other hosts. errors: values
    for which it got an error. unreadable: words that are unknown here. is_whole: its part of the
    XML has an end.

    uncorrectable: memory errors since the driver was loaded that could not be corrected.

    pcie_lanes: now; max_pcie_lanes: of GPU and slot. max_pcie_gen: what GPU and slot allow together;
    device_pcie_gen, host_pcie_gen: each alone. An idle link has a lower generation on purpose.
    """

    address: str
    lost: bool
    persistence: Flag
    display: Flag
    mig: Flag
    mig_instances: int
    ecc: Flag
    ecc_pending: Flag
    uncorrectable: Optional[int]
    sram_threshold_exceeded: Flag
    pages_pending: Flag
    rows_pending: Flag
    rows_failed: Flag
    channel_repair: Flag
    tpc_repair: Flag
    throttled: List[str]
    temperature_c: Number
    clock_mhz: Number
    default_clock_mhz: Number
    power_limit_w: Number
    default_power_limit_w: Number
    pcie_lanes: Number
    max_pcie_lanes: Number
    max_pcie_gen: Number
    device_pcie_gen: Number
    host_pcie_gen: Number
    fabric: Text
    fabric_status: Text
    fabric_faults: List[str]
    domain: Text
    product: Text
    virtualization: Text
    license: Text
    recovery: Text
    errors: List[str]
    unreadable: List[str]
    is_whole: bool


@frozen
class DriverLog:
    """attached: how many GPUs the driver counts. messages: lines around the XML, and in it.
    is_whole: the XML has an end."""

    driver: str | None
    gpus: list[GpuHealth]
    attached: int | None
    messages: list[str]
    is_whole: bool


@frozen
class GpuLinks:
    """A GPU by nvidia-smi's index and UUID, and the rate of each NVLink in one direction; None for
    an inactive one. Without any: it has none, or all are inactive. line: what evidence shows."""

    index: int
    uuid: str
    rates_gb_s: dict[int, float | None]
    product: str = ""
    line: str = ""

    @property
    def active(self) -> list[float]:
        return [rate for rate in self.rates_gb_s.values() if rate is not None]


def parse(text: str) -> DriverLog:
    """The output of QUERY, with whatever the driver printed around it. What a broken GPU's part lacks
    is missing there only. Raises ValueError where no XML begins."""
    messages = [line.strip() for line in _MESSAGE.findall(text)]
    text = _MESSAGE.sub("", text)
    start = text.find("<nvidia_smi_log")
    if start < 0:
        raise ValueError("; ".join(messages) or "nvidia-smi printed nothing")
    head, *parts = re.split(r"(?=<gpu id=)", text[start:])
    version = re.search(r"<driver_version>([^<]*)<", head)
    attached = re.search(r"<attached_gpus>(\d+)<", head)
    log = DriverLog(
        driver=version[1].strip() if version else None,
        gpus=[gpu for part in parts for gpu in _partial_gpus(part)],
        attached=int(attached[1]) if attached else None,
        messages=messages,
        is_whole="</nvidia_smi_log>" in text,
    )
    if not log.is_whole and not log.gpus:
        raise ValueError("nvidia-smi's XML is cut off before its first GPU")
    return log


def _partial_gpus(text: str) -> Iterator[GpuHealth]:
    """The GPU that a text begins with, as far as it goes; none if not even its tag is whole."""
    gpu, is_whole = None, False
    with contextlib.suppress(ElementTree.ParseError):
        for event, element in ElementTree.iterparse(io.StringIO(text), ("start", "end")):
            gpu = element if gpu is None else gpu
            is_whole = event == "end" and element is gpu
    if gpu is not None:
        yield _gpu(gpu, is_whole)


def _gpu(gpu: ElementTree.Element, is_whole: bool) -> GpuHealth:
    tokens = {element.tag: (element.text or "").strip(" []\n\t") for element in gpu.iter()}
    # The active reasons, as in `hw_thermal_slowdown`. nvidia-smi renamed throttle reasons to event
    # reasons in 2023.
    active = [tag for tag, token in tokens.items() if token == "Active"]
    reasons = re.findall(r"(?m)^clocks_(?:event|throttle)_reason_(.+)", "\n".join(active))
    recovery = RESET_REQUIRED if RESET_REQUIRED in tokens.values() else _recovery(gpu)
    is_workstation = WORKSTATION.search(gpu.findtext("product_brand", "")) is not None
    is_nameless = _text(gpu, "product_name", "uuid") is None
    # Without a cluster the fabric is this host's own.
    cluster = (_text(gpu, "fabric/clusterUuid") or "").strip("0-")
    state, status = _text(gpu, "fabric/state"), (gpu.findtext("fabric/status") or "").strip()
    unreadable, fabric_faults = [], []
    for element in gpu.findall("fabric/health/*"):
        token = (element.text or "").strip()
        # What is configured wrongly has many names.
        if token in FABRIC_FAULTS or "configuration" in element.tag:
            if token not in (*NO_VALUE, *NO):
                fabric_faults.append(f"{element.tag} {token}")
        elif token not in (*NO_VALUE, *FABRIC_HEALTHY):
            unreadable.append(f"fabric {element.tag}: {token}")
    if state not in (None, *FABRIC_STATES):
        unreadable.append(f"fabric state: {state}")
    values: Dict[str, Any] = {}
    for line in _FIELDS.split("\n")[1:-1]:
        kind, field, *paths = line.split()
        values[field] = {"flag": _flag, "number": _number, "text": _text}[kind](gpu, *paths)
        if kind == "flag" and _text(gpu, *paths) not in (None, *YES, *NO):
            unreadable.append(f"{paths[0].rpartition('/')[2]}: {_text(gpu, *paths)}")
    if is_workstation:
        values["ecc"] = None
    if is_workstation or values["virtualization"] in VIRTUAL:
        values["persistence"] = None
    return GpuHealth(
        **values,
        address=gpu.get("id", ""),
        lost=(is_nameless and is_whole and recovery != RESET_REQUIRED) or LOST in tokens.values(),
        mig_instances=len(gpu.findall("mig_devices/mig_device")),
        uncorrectable=_uncorrectable(gpu),
        throttled=reasons,
        fabric=state if state in FABRIC_STATES else None,
        # Other than Success, it is the name of an error.
        fabric_status=None if status in ABSENT else status,
        fabric_faults=fabric_faults,
        domain=f"{cluster} clique {_text(gpu, 'fabric/cliqueId')}" if cluster else None,
        recovery=recovery,
        # The status of the fabric is the name of an error itself.
        errors=[
            f"{tag}: {token}"
            for tag, token in tokens.items()
            if token in ERRORS and tag != "status"
        ],
        unreadable=unreadable,
        is_whole=is_whole,
    )


def _recovery(gpu: ElementTree.Element) -> str | None:
    if action := _text(gpu, "gpu_recovery_action"):
        return action
    # From 2022 to 2025.
    if _flag(gpu, "gpu_reset_status/drain_and_reset_recommended"):
        return "Drain and Reset"
    return "Reset" if _flag(gpu, "gpu_reset_status/reset_required") else None


def _uncorrectable(gpu: ElementTree.Element) -> int | None:
    if (volatile := gpu.find("ecc_errors/volatile")) is None:
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
        if text.strip("[]") not in NO_VALUE:
            return text
    return None


def _flag(element: ElementTree.Element, *paths: str) -> bool | None:
    """None for an unknown word, too."""
    text = _text(element, *paths)
    return text in YES if text in (*YES, *NO) else None


def _number(element: ElementTree.Element, *paths: str) -> float | None:
    """The number that a value begins with: `16x`, `700.00 W`, `34 C`."""
    match = re.match(r"\d+(\.\d+)?", _text(element, *paths) or "")
    return float(match[0]) if match else None


def parse_nvlinks(text: str) -> list[GpuLinks]:
    """The output of NVLINK_STATUS."""
    gpus: list[GpuLinks] = []
    for line in text.splitlines():
        if head := _GPU_LINE.match(line):
            gpus.append(GpuLinks(int(head[1]), head[3], {}, head[2], line.strip()))
        # "Link 3: 26.562 GB/s" or "Link 3: <inactive>".
        if (link := re.match(r"\s*Link (\d+): (?:([\d.]+) GB/s|<?\w+>?\s*$)", line)) and gpus:
            gpus[-1].rates_gb_s[int(link[1])] = float(link[2]) if link[2] else None
        elif gpus and "inactive" in line.lower():
            gpus[-1] = replace(gpus[-1], line=line.strip())
    return gpus


def parse_nvlink_errors(text: str) -> dict[str, dict[str, int]]:
    """The output of NVLINK_ERRORS: by GPU (its UUID) the counters above zero."""
    errors: dict[str, dict[str, int]] = {}
    uuid = ""
    for line in text.splitlines():
        if head := _GPU_LINE.match(line):
            uuid = head[3]
        # "Link 0: Replay Errors: 0"; of NVLink 5 also "Link recovery failed events: 0". Packets, bins
        # of error correction ("FEC Errors - 0") and bit error rates are no faults.
        counter = re.match(r"\s*Link (\d+): (.+ Errors|.*discards|.*failed events): (\d+)", line)
        if counter and uuid and int(counter[3]):
            errors.setdefault(uuid, {})[f"link {counter[1]}: {counter[2]}"] = int(counter[3])
    return errors
