"""Probes: InfiniBand and RoCE adapters, and whether NCCL can use them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ..facts import limits, wires
from ..fs.files import read_text
from .network import ROUTE, ROUTES
from .probe import Findings, Limitation, Probes, Result, observation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .machine import Machine

INFINIBAND = "/sys/class/infiniband"
PRODUCT = "/sys/class/dmi/id/product_name"
ROCE_V2 = "RoCE v2"
# The first kernel that exports GPU memory to network adapters as DMA-BUF; only NVIDIA's open kernel
# modules do it (NCCL's documentation of NCCL_DMABUF_ENABLE).
DMABUF_KERNEL = (5, 12)
# The least that a port of these adapters runs at, if its cable and switch are right: data sheets of
# ConnectX-5, -6, -7 and -8; the slowest model of each.
LEAST_GIGABITS = {"MT4119": 25.0, "MT4123": 100.0, "MT4129": 100.0, "MT4131": 200.0}
MULTI_GPU = 4
ACTIVE = "ACTIVE"


def adapters(machine: Machine) -> Findings:
    if (ports := _active_ports(machine)) and not limits.infiniband(machine.root):
        names = ", ".join(sorted({port.parent.parent.name for port in ports}))
        yield observation(
            "infiniband-unused",
            f"{names} is active, but this process may open no device of /dev/infiniband",
            f"{INFINIBAND}/*/ports/*/state",
            "ACTIVE",
        )


class _Port(NamedTuple):
    """rate: `400 Gb/sec (4X NDR)`. pcie_gigabits: of the adapter's PCIe link; 0 if unknown."""

    name: str
    model: str
    state: str
    rate: str
    gigabits: float
    pcie_gigabits: float


def _kinds(machine: Machine) -> list[list[_Port]]:
    """The ports that should be in use, by kind: adapter model, board, link layer, function and number.
    Others are switched off, or of virtual functions that no guest uses; nor has a cable a few
    adapters of another kind."""
    kinds: dict[tuple[str, str, str, str, str], list[_Port]] = {}
    for path in machine.glob(INFINIBAND, "*/ports/*"):
        card, rate = path.parent.parent, _text(path / "rate")
        state, layer = _text(path / "state").partition(": ")[2], _text(path / "link_layer")
        is_off = "Disabled" in _text(path / "phys_state") or (card / "device/physfn").exists()
        # An address ends with its function: 0000:9a:00.1
        function = (card / "device").resolve().name[-2:]
        if (state != "DOWN" or not is_off) and not wires.is_switch_bridge(card):
            model = _text(card / "hca_type")
            kind = (model, _text(card / "board_id"), layer, function, path.name)
            port = _Port(
                name=f"{card.name}:{path.name}",
                model=model,
                state=state,
                rate=rate,
                gigabits=float(rate.split()[0]) if rate else 0.0,
                pcie_gigabits=wires.current_gb_s(card / "device") * 8,
            )
            kinds.setdefault(kind, []).append(port)
    active = [kind for kind, ports in kinds.items() if ACTIVE in [port.state for port in ports]]
    result = []
    for kind, ports in kinds.items():
        _, _, layer, function, number = kind
        # Of Ethernet, and of the second ports of cards, often none has a cable.
        is_spare = layer == "Ethernet" or number != "1" or re.fullmatch(r"\.[1-7]", function)
        is_needed = not is_spare and (not active or len(ports) >= MULTI_GPU)
        if kind in active or is_needed:
            result.append(ports)
    return result


def ports(machine: Machine) -> Iterator[Result]:
    """Whether the ports of each kind of adapter are up, and alike."""
    if (gpus := len(machine.gpus())) and not machine.glob(INFINIBAND, "*"):
        yield Limitation(f"no InfiniBand or RoCE adapter is in {INFINIBAND}: none was examined")
    # A hypervisor shows what it likes, and DGX Spark has four lanes for each half of a port.
    has_plain_slots = " hypervisor" not in machine.read("/proc/cpuinfo")
    has_plain_slots &= not re.search("DGX.Spark|GB10", machine.read(PRODUCT))
    for ports in _kinds(machine):
        if down := [port for port in ports if port.state != ACTIVE]:
            states = ", ".join(f"{port.name} is {port.state or 'unreadable'}" for port in down)
            states = states.replace("INIT", "INIT (no subnet manager)")
            yield observation(
                "port-down",
                f"{len(down)} of {len(ports)} ports are not active: {states}",
                f"{INFINIBAND}/*/ports/*/state",
                states,
            )
        fastest = max(port.gigabits for port in ports)
        least = max(fastest, LEAST_GIGABITS.get(ports[0].model, 0.0))
        for port in ports:
            is_slow = port.gigabits < least or "(1X " in port.rate
            if port.state == ACTIVE and port.rate and is_slow:
                yield observation(
                    "port-slow",
                    f"{port.name} runs at {port.rate}; its kind at {least:g} Gb/sec or more",
                    f"{INFINIBAND}/*/ports/*/rate",
                    port.rate,
                )
        widest = max(port.pcie_gigabits for port in ports)
        for port in ports:
            is_reduced = 0 < port.pcie_gigabits < max(port.gigabits, widest)
            if has_plain_slots and port.state == ACTIVE and is_reduced:
                message = (
                    f"the PCIe link of {port.name} carries {port.pcie_gigabits:.0f} Gb/s; its port"
                    f" has {port.gigabits:g}, and its kind {widest:.0f}"
                )
                yield observation(
                    "nic-pcie-reduced", message, f"{INFINIBAND}/*/device/current_link_*", message
                )
        if gpus >= MULTI_GPU and len(ports) > 1 and (len(ports) + 1) % gpus == 0:
            message = f"{len(ports)} adapters of one kind for {gpus} GPUs"
            yield observation(
                "adapter-missing", message, INFINIBAND, ", ".join(port.name for port in ports)
            )


def named_adapters(machine: Machine) -> Findings:
    """NCCL_IB_HCA: names or their beginnings, `=` for exactly these, `^` for all others."""
    value = machine.variable("NCCL_IB_HCA")
    entries = [entry.strip().partition(":")[0] for entry in value.lstrip("^=").split(",")]
    names = tuple(filter(None, entries))
    present = {path.name for path in machine.glob(INFINIBAND, "*")}
    named = present.intersection(names)
    if "=" not in value:
        named = {name for name in present if name.startswith(names)}
    usable = present - named if value.startswith("^") else named
    if names and not usable:
        adapters = ", ".join(sorted(present)) or "none"
        yield observation(
            "nccl-hca",
            f"NCCL_IB_HCA={value} leaves no adapter; this host has {adapters}",
            "variable NCCL_IB_HCA",
            value,
        )


def gid(machine: Machine) -> Findings:
    """The configured GID index of each active RoCE port."""
    value = machine.variable("NCCL_IB_GID_INDEX")
    for port in _roce_ports(machine) if value.isdigit() else ():
        kind = _text(port / "gid_attrs/types" / value)
        # One that holds an IPv4 address: 0000:...:ffff:0a00:0001.
        has_ipv4 = re.match(r"(?:0000:){5}ffff:", _text(port / "gids" / value)) is not None
        if kind != ROCE_V2 or not has_ipv4:
            described = f"{kind or 'no'} address" + ("" if has_ipv4 else " without IPv4")
            yield observation(
                "roce-gid",
                f"NCCL_IB_GID_INDEX={value} is {described} on {port.parent.parent.name}",
                machine.name(port / "gids" / value),
                kind,
            )
            return


def rails(machine: Machine) -> Findings:
    """Adapters that are each in a separate network, without a gateway from one to another."""
    if machine.variable("NCCL_CROSS_NIC") != "1":
        return
    # By interface, the network that its route leads to, without routes through a gateway.
    networks = {}
    for name, destination, gateway, _, _, mask in ROUTE.findall(machine.read(ROUTES)):
        if gateway == "00000000" != mask:
            networks[name] = (destination, mask)
    devices = {_text(port / "gid_attrs/ndevs/0") for port in _roce_ports(machine)}
    distinct = {networks[device] for device in devices if device in networks}
    if len(devices) > 1 and len(distinct) == len(devices):
        yield observation(
            "cross-rail",
            f"NCCL_CROSS_NIC=1, and {len(devices)} adapters are in separate networks",
            "variable NCCL_CROSS_NIC",
            "1",
        )


def gpu_direct(machine: Machine) -> Findings:
    if not _active_ports(machine) or not machine.gpus():
        return
    if re.search(r"^(nvidia_peermem|nv_peer_mem) ", machine.read("/proc/modules"), re.MULTILINE):
        return
    kernel = re.match(r"Linux version (\d+)\.(\d+)", machine.read("/proc/version"))
    has_dmabuf = kernel is not None and (int(kernel[1]), int(kernel[2])) >= DMABUF_KERNEL
    if "Open Kernel Module" in machine.read("/proc/driver/nvidia/version") and has_dmabuf:
        return
    yield observation(
        "peermem-missing",
        "nvidia_peermem is not loaded, and this driver has no DMA-BUF",
        "/proc/modules",
        "no nvidia_peermem",
    )


def _active_ports(machine: Machine) -> list[Path]:
    return [
        port for port in machine.glob(INFINIBAND, "*/ports/*") if ACTIVE in _text(port / "state")
    ]


def _roce_ports(machine: Machine) -> list[Path]:
    return [port for port in _active_ports(machine) if _text(port / "link_layer") == "Ethernet"]


def _text(path: Path) -> str:
    """A file of /sys; empty where there is none: an unused GID cannot be read."""
    return read_text(path).strip()


PROBES: Probes = {
    "InfiniBand": adapters,
    "ports": ports,
    "NCCL_IB_HCA": named_adapters,
    "RoCE addresses": gid,
    "rails": rails,
    "GPUDirect RDMA": gpu_direct,
}
