"""The wires of this host: what NVLink, PCIe and the network cards can carry, as the driver and the
kernel report it.

Rates are GB/s (1e9 bytes per second) in one direction. Nothing here is measured; the smoke test
compares what it measures with these rates. A rate that cannot be read is absent, never guessed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from ..fs.files import read_text
from . import gpu_health, libraries
from .model import LinkFacts, PcieFacts, PortFacts, WireFacts

SMI_TIMEOUT_S = 10.0
# A cell of `nvidia-smi topo -m` (NVIDIA/nccl#1617): a bonded set of NVLinks.
BONDED_LINKS = re.compile(r"NV(\d+)$")
GPU_NAME = re.compile(r"GPU\d+")
# PCI Express Base Specification: GB/s of a lane by generation. Of the transfers 8b/10b are data up to
# generation 2, 128b/130b up to 5, and 242 of 256 bytes (FLITs) since 6.
PCIE_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.984615, 4: 1.969231, 5: 3.938462, 6: 7.5625}
# By gigatransfers per second and lane.
PCIE_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
GIGATRANSFERS = re.compile(r"([\d.]+) GT/s")
PORT_ACTIVE = "ACTIVE"
# "400 Gb/sec (4X NDR)" in /sys/class/infiniband/*/ports/*/rate.
PORT_RATE = re.compile(r"([\d.]+) Gb/sec")


def collect(root: Path = Path("/")) -> WireFacts:
    """All wires of this host, as JSON. Takes up to SMI_TIMEOUT_S twice if nvidia-smi hangs."""
    return {
        "nvlink": nvlink(smi(*gpu_health.NVLINK_STATUS), smi("topo", "-m")),
        "pcie": pcie_links(root),
        "ports": network_ports(root),
        "interfaces": interface_rates(root),
        "instance": read_text(root / "sys/class/dmi/id/product_name").strip(),
        # x86 alone has this flag; elsewhere it stays unknown.
        "virtual": " hypervisor" in read_text(root / "proc/cpuinfo"),
    }


def nvlink(links_text: str, topology_text: str) -> dict[str, LinkFacts]:
    """By the GPU's UUID: the rate of each active link, and how many links lead to each other GPU.

    Through an NVSwitch all links lead to every GPU; in a mesh each leads to one.
    """
    gpus = {gpu.index: gpu for gpu in gpu_health.parse_nvlinks(links_text)}
    peers = parse_topology(topology_text)
    result: dict[str, LinkFacts] = {}
    for index, gpu in gpus.items():
        links_to = {
            gpus[peer].uuid: count for peer, count in peers.get(index, {}).items() if peer in gpus
        }
        rates = [rate for rate in gpu.rates_gb_s.values() if rate is not None]
        result[gpu.uuid] = {"links_gb_s": rates, "links_to": links_to}
    return result


def parse_topology(text: str) -> dict[int, dict[int, int]]:
    """For each GPU, how many NVLinks lead to each other GPU, by nvidia-smi's index."""
    # The header is underlined on a terminal.
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    header, *rows = [line.split() for line in plain.splitlines()] or [[]]
    columns = [int(name[3:]) for name in header if GPU_NAME.fullmatch(name)]
    result: dict[int, dict[int, int]] = {}
    for row in rows:
        if row and GPU_NAME.fullmatch(row[0]):
            counts = [BONDED_LINKS.match(cell) for cell in row[1:]]
            pairs = zip(columns, counts)
            result[int(row[0][3:])] = {peer: int(count[1]) for peer, count in pairs if count}
    return result


def pcie_gb_s(generation: int, lanes: int) -> float:
    return PCIE_LANE_GB_S[generation] * lanes


def pcie_links(root: Path = Path("/")) -> list[PcieFacts]:
    devices = root / "sys/bus/pci/devices"
    links = [pcie_link(devices / gpu["address"]) for gpu in libraries.pci_gpus(root)]
    return [link for link in links if link is not None]


def pcie_link(folder: Path) -> PcieFacts | None:
    """The link of the card in a folder of /sys; None if the kernel does not show it."""
    card = _generation(folder / "max_link_speed")
    card_lanes = _number(folder / "max_link_width")
    lanes = _number(folder / "current_link_width")
    if card is None or card_lanes is None or not lanes:
        return None
    # The folder is a link into the tree of devices: the slot's port is the folder above. The lower
    # one of both counts; both fall while the card is idle, so the current one means nothing.
    slot = _generation(folder.resolve().parent / "max_link_speed")
    generation = card if slot is None else min(card, slot)
    return {
        "address": folder.name,
        "generation": generation,
        "lanes": lanes,
        "card_lanes": card_lanes,
        "path": _path(folder),
        "gb_s": round(pcie_gb_s(generation, lanes), 3),
    }


def current_gb_s(folder: Path) -> float:
    """What a network adapter's link carries now; 0 if that is unknown. Other than a GPU's, it does not
    fall when the card is idle."""
    link, generation = pcie_link(folder), _generation(folder / "current_link_speed")
    if link is None or generation is None:
        return 0.0
    return pcie_gb_s(min(link["generation"], generation), link["lanes"])


def _path(card: Path) -> str:
    """The card's folder below /sys/devices: the bridges and switches above it are in it."""
    return str(card.resolve()).partition("/sys/devices/")[2]


def _generation(path: Path) -> int | None:
    match = GIGATRANSFERS.match(read_text(path))
    return PCIE_GENERATIONS.get(float(match[1])) if match else None


def is_switch_bridge(card: Path) -> bool:
    """Whether a ConnectX-7 leads to the NVSwitches of an HGX B200 or B300, and to no network: its vital
    product data, which root alone can read, say so (NVIDIA Fabric Manager user guide)."""
    return "SMDL=SW_MNG" in read_text(card / "device/vpd")


def network_ports(root: Path = Path("/")) -> list[PortFacts]:
    """The ports of RDMA cards that are up and whose rate the kernel reports."""
    ports: list[PortFacts] = []
    for folder in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        rate = PORT_RATE.match(read_text(folder / "rate"))
        card = folder.parent.parent
        is_active = PORT_ACTIVE in read_text(folder / "state")
        if rate is None or not is_active or is_switch_bridge(card):
            continue
        driver = (card / "device" / "driver").resolve().name
        ports.append(
            {
                "name": card.name,
                "port": int(folder.name),
                "gb_s": float(rate[1]) / 8,
                "link_layer": read_text(folder / "link_layer").strip(),
                "driver": driver,
                "path": _path(card / "device"),
            }
        )
    return ports


def interface_rates(root: Path = Path("/")) -> dict[str, float]:
    """GB/s of each network interface whose driver reports it. A virtual one reports -1, or nothing."""
    rates = {}
    for folder in sorted((root / "sys/class/net").glob("*")):
        megabits = _number(folder / "speed")
        if megabits is not None and megabits > 0:
            rates[folder.name] = megabits / 8000
    return rates


def _number(path: Path) -> int | None:
    text = read_text(path).strip()
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def smi(*arguments: str) -> str:
    """What nvidia-smi prints with these arguments; empty if it is absent, fails or hangs."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        child = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SMI_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return child.stdout.decode(errors="replace") if child.returncode == 0 else ""
