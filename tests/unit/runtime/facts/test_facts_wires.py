"""What NVLink, PCIe and the network cards can carry, from the text of nvidia-smi and from /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision_runtime.facts import wires

# As in NVIDIA/k8s-test-infra#371, shortened to two GPUs with three links.
LINKS = """\
GPU 0: NVIDIA GB200 (UUID: GPU-d1b93026-6d5b-03bd-3a71-f85b47a61bde)
\t Link 0: 53.125 GB/s
\t Link 1: 53.125 GB/s
\t Link 2: <inactive>
GPU 1: NVIDIA GB200 (UUID: GPU-39ac7bce-e3d6-b426-008e-fa47897c72d5)
\t Link 0: 53.125 GB/s
\t Link 1: 53.125 GB/s
"""
# As in NVIDIA/nccl#1617, with the underlined header of a terminal.
TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV6\tNV6\tSYS\tPIX\t6,14,22,30\t3\tN/A
GPU1\tNV6\t X \tNV6\tNV6\tSYS\t4,12,20,28\t1\tN/A
GPU2\tNV6\tNV6\t X \tNV6\tSYS\t7,15,23,31\t7\tN/A
GPU3\tSYS\tNV6\tNV6\t X \tSYS\t5,13,21,29\t5\tN/A
NIC0\tPIX\tSYS\tSYS\tSYS\t X \t\t\t

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def test_links_between_gpus() -> None:
    assert wires.parse_topology(TOPOLOGY) == {
        0: {1: 6, 2: 6},
        1: {0: 6, 2: 6, 3: 6},
        2: {0: 6, 1: 6, 3: 6},
        3: {1: 6, 2: 6},
    }


def test_gpus_that_nvlink_does_not_list_have_no_rate() -> None:
    result = wires.nvlink(LINKS, TOPOLOGY)
    first = result["GPU-d1b93026-6d5b-03bd-3a71-f85b47a61bde"]
    assert first == {
        "links_gb_s": [53.125, 53.125],
        "links_to": {"GPU-39ac7bce-e3d6-b426-008e-fa47897c72d5": 6},
    }


@pytest.mark.parametrize("text", ["", "No devices were found\n", "\n\n", "GPU0\n", "\x1b[4m"])
def test_other_text_gives_nothing(text: str) -> None:
    assert wires.nvlink(text, text) == {}


@pytest.mark.parametrize(
    ("generation", "lanes", "gb_s"),
    [(3, 16, 15.75), (4, 16, 31.5), (5, 16, 63.0), (6, 16, 121.0), (4, 8, 15.75), (1, 16, 4.0)],
)
def test_rates_of_pcie(generation: int, lanes: int, gb_s: float) -> None:
    assert wires.pcie_gb_s(generation, lanes) == pytest.approx(gb_s, rel=0.001)


def lay_out_gpu(root: Path, slot_speed: str, lanes: str) -> None:
    slot = root / "sys/devices/pci0000:00/0000:00:01.0"
    card = slot / "0000:1b:00.0"
    card.mkdir(parents=True)
    (slot / "max_link_speed").write_text(slot_speed)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030200\n")
    (card / "max_link_speed").write_text("32.0 GT/s PCIe\n")
    (card / "max_link_width").write_text("16\n")
    (card / "current_link_speed").write_text("2.5 GT/s PCIe\n")
    (card / "current_link_width").write_text(lanes)
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / card.name).symlink_to(card)


def test_an_idle_card_has_the_rate_of_its_slot(tmp_path: Path) -> None:
    lay_out_gpu(tmp_path, "16.0 GT/s PCIe\n", "8\n")
    assert wires.pcie_links(tmp_path) == [
        {
            "address": "0000:1b:00.0",
            "generation": 4,
            "lanes": 8,
            "card_lanes": 16,
            "path": "pci0000:00/0000:00:01.0/0000:1b:00.0",
            "gb_s": 15.754,
        }
    ]


def test_a_slot_that_does_not_tell_its_speed(tmp_path: Path) -> None:
    lay_out_gpu(tmp_path, "Unknown\n", "16\n")
    (link,) = wires.pcie_links(tmp_path)
    assert link["gb_s"] == pytest.approx(63.0, rel=0.001)


def test_a_card_whose_width_is_unknown_has_no_rate(tmp_path: Path) -> None:
    lay_out_gpu(tmp_path, "16.0 GT/s PCIe\n", "0\n")
    assert wires.pcie_links(tmp_path) == []


def lay_out_port(root: Path, card: str, state: str, rate: str, driver: str = "mlx5_core") -> None:
    port = root / "sys/class/infiniband" / card / "ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text(state)
    (port / "rate").write_text(rate)
    (port / "link_layer").write_text("InfiniBand\n")
    drivers = root / "sys/bus/pci/drivers" / driver
    drivers.mkdir(parents=True, exist_ok=True)
    device = root / "sys/devices/pci0000:00" / card
    device.mkdir(parents=True)
    (device / "driver").symlink_to(drivers)
    (root / "sys/class/infiniband" / card / "device").symlink_to(device)


def test_ports_that_are_up(tmp_path: Path) -> None:
    lay_out_port(tmp_path, "mlx5_0", "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n")
    lay_out_port(tmp_path, "mlx5_1", "1: DOWN\n", "10 Gb/sec (4X SDR)\n")
    assert wires.network_ports(tmp_path) == [
        {
            "name": "mlx5_0",
            "port": 1,
            "gb_s": 50.0,
            "link_layer": "InfiniBand",
            "driver": "mlx5_core",
            "path": "pci0000:00/mlx5_0",
        }
    ]


def test_interfaces_that_tell_their_speed(tmp_path: Path) -> None:
    for name, speed in (("eth0", "100000\n"), ("veth1", "-1\n"), ("lo", "")):
        folder = tmp_path / "sys/class/net" / name
        folder.mkdir(parents=True)
        (folder / "speed").write_text(speed)
    assert wires.interface_rates(tmp_path) == {"eth0": 12.5}


def test_this_host_has_an_answer() -> None:
    expected = {"nvlink", "pcie", "ports", "interfaces", "instance", "virtual"}
    assert set(wires.collect()) == expected


@pytest.mark.parametrize(("flags", "is_virtual"), [("fpu hypervisor lm", True), ("fpu lm", False)])
def test_the_kind_of_machine(tmp_path: Path, flags: str, is_virtual: bool) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(f"flags\t\t: {flags}\n")
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/class/dmi/id/product_name").write_text("p5en.48xlarge\n")
    facts = wires.collect(tmp_path)
    assert (facts["instance"], facts["virtual"]) == ("p5en.48xlarge", is_virtual)
