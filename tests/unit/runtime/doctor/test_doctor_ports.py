"""Ports of RDMA adapters: those of one kind are up and alike, and NCCL_IB_HCA names some."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision_runtime.doctor import fabric
from provision_runtime.doctor.machine import Machine
from provision_runtime.doctor.probe import Limitation
from provision_runtime.facts import wires

NDR, HDR, ETHERNET = "400 Gb/sec (4X NDR)", "200 Gb/sec (2X NDR)", "Ethernet"
# Function, state, physical state, rate, link layer.
Card = tuple[int, str, str, str, str]
GOOD: Card = (0, "4: ACTIVE", "5: LinkUp", NDR, "InfiniBand")
DOWN: Card = (0, "1: DOWN", "2: Polling", NDR, "InfiniBand")
ROCE: Card = (0, "4: ACTIVE", "5: LinkUp", NDR, ETHERNET)
ROCE_DOWN: Card = (0, "1: DOWN", "2: Polling", NDR, ETHERNET)


def machine(root: Path, cards: list[Card], gpus: int = 8, environment: str = "") -> Machine:
    for index in range(gpus):
        gpu = root / f"sys/bus/pci/devices/0000:{index:02x}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "vendor").write_text("0x10de\n")
        (gpu / "class").write_text("0x030200\n")
    for index, (function, state, physical, rate, layer) in enumerate(cards):
        device = root / f"sys/devices/0000:a{index:x}:00.{function}"
        device.mkdir(parents=True)
        card = root / f"sys/class/infiniband/mlx5_{index}"
        port = card / "ports/1"
        port.mkdir(parents=True)
        (card / "device").symlink_to(device)
        (card / "hca_type").write_text("MT4129\n")
        for name, text in (
            ("state", state),
            ("phys_state", physical),
            ("rate", rate),
            ("link_layer", layer),
        ):
            (port / name).write_text(f"{text}\n")
    return Machine(root, {"NCCL_IB_HCA": environment})


@pytest.mark.parametrize(
    ("cards", "ids"),
    [
        ([GOOD] * 8, []),
        ([GOOD] * 7 + [DOWN], ["port-down"]),
        ([DOWN] * 8, ["port-down"]),
        ([GOOD] * 7 + [(0, "2: INIT", "5: LinkUp", NDR, "InfiniBand")], ["port-down"]),
        ([GOOD] * 7 + [(0, "odd", "5: LinkUp", NDR, "InfiniBand")], ["port-down"]),
        ([GOOD] * 7 + [(0, "4: ACTIVE", "5: LinkUp", HDR, "InfiniBand")], ["port-slow"]),
        ([(0, "4: ACTIVE", "5: LinkUp", "25 Gb/sec (1X EDR)", "InfiniBand")] * 2, ["port-slow"] * 2),
        ([(0, "4: ACTIVE", "5: LinkUp", "40 Gb/sec (4X QDR)", "InfiniBand")], ["port-slow"]),
        ([(0, "4: ACTIVE", "5: LinkUp", HDR, "InfiniBand")] * 16, []),
        ([GOOD] * 7, ["adapter-missing"]),
        ([GOOD] * 4, []),
        # Ports for storage or management, without a cable or switched off.
        ([GOOD] * 8 + [ROCE_DOWN] * 2, []),
        ([ROCE] * 8 + [(1, *ROCE_DOWN[1:])] * 8, []),
        ([ROCE] * 7 + [ROCE_DOWN], ["port-down"]),
        ([ROCE] * 8 + [(0, "1: DOWN", "3: Disabled", NDR, ETHERNET)], []),
        ([ROCE_DOWN] * 2, []),
        ([ROCE] * 8 + [DOWN] * 2, []),
        ([ROCE] * 2 + [DOWN] * 8, ["port-down"]),
        ([(0, "4: ACTIVE", "5: LinkUp", "100 Gb/sec (4X EDR)", "Unspecified")] * 4, []),  # EFA
        ([], []),
    ],
)  # fmt: skip
def test_ports_of_one_kind(cards: list[Card], ids: list[str], tmp_path: Path) -> None:
    results = fabric.ports(machine(tmp_path, cards))
    found = [result["id"] for result in results if not isinstance(result, Limitation)]
    assert found == ids


def test_a_bridge_to_the_nvswitches_is_no_port(tmp_path: Path) -> None:
    captured = machine(tmp_path, [GOOD] * 8 + [DOWN] * 4)
    for index in range(8, 12):
        (tmp_path / f"sys/class/infiniband/mlx5_{index}/device/vpd").write_bytes(
            b"\x90SMDL=SW_MNG\xff"
        )
    assert list(fabric.ports(captured)) == []
    assert len(wires.network_ports(tmp_path)) == 8


@pytest.mark.parametrize(
    ("links", "more", "names"),
    [
        # GT/s, lanes, the card's GT/s and lanes: ConnectX-7 with 400 Gb/s.
        (["32.0 16 32.0 16"] * 2, {}, []),
        (["32.0 16 32.0 16", "32.0 8 32.0 16"], {}, ["mlx5_1:1"]),
        (["16.0 16 32.0 16", "32.0 16 32.0 16"], {}, ["mlx5_0:1"]),
        (["32.0 4 32.0 16"] * 2, {}, ["mlx5_0:1", "mlx5_1:1"]),
        (["32.0 4 32.0 16"] * 2, {"proc/cpuinfo": "flags : fpu hypervisor lahf_lm"}, []),
        (["32.0 4 32.0 4"] * 2, {"sys/class/dmi/id/product_name": "NVIDIA_DGX_Spark"}, []),
        (["Unknown 0 Unknown 255"] * 2, {}, []),
    ],
)
def test_the_pcie_link_of_an_adapter_carries_its_port(
    links: list[str], more: dict[str, str], names: list[str], tmp_path: Path
) -> None:
    host = machine(tmp_path, [GOOD] * len(links))
    for index, link in enumerate(links):
        device = tmp_path / f"sys/devices/0000:a{index:x}:00.0"
        speed, lanes, most_speed, most_lanes = link.split()
        (device / "current_link_speed").write_text(f"{speed} GT/s PCIe\n")
        (device / "current_link_width").write_text(f"{lanes}\n")
        (device / "max_link_speed").write_text(f"{most_speed} GT/s PCIe\n")
        (device / "max_link_width").write_text(f"{most_lanes}\n")
    for name, text in more.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    found = [result for result in fabric.ports(host) if not isinstance(result, Limitation)]
    assert {observation["id"] for observation in found} <= {"nic-pcie-reduced"}
    assert [observation["message"].split()[4] for observation in found] == names


@pytest.mark.parametrize(
    ("value", "is_usable"),
    [
        *(
            (value, True)
            for value in ("", "mlx5", "mlx5_1:1", "=mlx5_1", "^mlx5_1", "x,mlx5_0", "^=m")
        ),
        *((value, False) for value in ("mlx5_7", "=mlx5", "mlx4,bnxt", "^mlx5", "ib0")),
    ],
)
def test_nccl_is_given_an_adapter(value: str, is_usable: bool, tmp_path: Path) -> None:
    found = list(fabric.named_adapters(machine(tmp_path, [GOOD] * 2, environment=value)))
    assert [observation["id"] for observation in found] == [] if is_usable else ["nccl-hca"]


def test_any_adapter_that_nccl_is_told_of_is_absent_where_there_is_none(tmp_path: Path) -> None:
    [observation] = fabric.named_adapters(machine(tmp_path, [], environment="mlx5_0"))
    assert observation["evidence"] == [{"source": "variable NCCL_IB_HCA", "value": "mlx5_0"}]
