"""What nvidia-smi says of GPUs, from releases of several years, and how it is judged."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from provision.catalog import data_files
from provision_runtime.checks import gpus as judge
from provision_runtime.facts import gpu_health
from provision_runtime.facts.gpu_health import GpuLinks

XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v11.dtd">
<nvidia_smi_log><driver_version>470.82.01</driver_version>{gpus}</nvidia_smi_log>
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # A GPU for desktops supports none of it.
        ("<ecc_mode><current_ecc>N/A</current_ecc></ecc_mode>", []),
        (
            "<retired_pages><pending_blacklist>N/A</pending_blacklist>"
            "<pending_retirement>Requested functionality has been deprecated</pending_retirement>"
            "</retired_pages>",
            [],
        ),
        # The driver's words of before 2023.
        (
            "<power_readings><power_limit>200.00 W</power_limit>"
            "<default_power_limit>250.00 W</default_power_limit></power_readings>",
            ["gpu-power-limited"],
        ),
        # More than the default, as on laptops.
        (
            "<gpu_power_readings><current_power_limit>95.00 W</current_power_limit>"
            "<default_power_limit>55.00 W</default_power_limit></gpu_power_readings>",
            [],
        ),
        (
            "<clocks_throttle_reasons><clocks_throttle_reason_hw_slowdown>Active"
            "</clocks_throttle_reason_hw_slowdown></clocks_throttle_reasons>",
            ["gpu-throttled"],
        ),
        # Under full load the power cap is what it should be.
        (
            "<clocks_event_reasons><clocks_event_reason_sw_power_cap>Active"
            "</clocks_event_reason_sw_power_cap></clocks_event_reasons>",
            [],
        ),
        (
            "<ecc_errors><volatile><single_bit><total>7</total></single_bit>"
            "<double_bit><device_memory>1</device_memory><total>1</total></double_bit>"
            "</volatile></ecc_errors>",
            ["gpu-memory-errors"],
        ),
        (
            "<ecc_errors><volatile><dram_correctable>9</dram_correctable>"
            "<dram_uncorrectable>0</dram_uncorrectable></volatile></ecc_errors>",
            [],
        ),
        (
            "<retired_pages><pending_blacklist>Yes</pending_blacklist></retired_pages>",
            ["gpu-memory-pending"],
        ),
        ("<persistence_mode>Disabled</persistence_mode>", ["persistence-off"]),
        (
            "<persistence_mode>Disabled</persistence_mode><gpu_virtualization_mode>"
            "<virtualization_mode>Pass-Through</virtualization_mode></gpu_virtualization_mode>",
            [],
        ),
        *[
            (
                f"<product_brand>{brand}</product_brand><ecc_mode><current_ecc>Disabled"
                "</current_ecc><pending_ecc>Disabled</pending_ecc></ecc_mode>",
                finding_ids,
            )
            for brand, finding_ids in (
                ("GeForce", []),
                ("NVIDIA RTX", []),
                ("Quadro RTX", []),
                ("NVIDIA", ["gpu-ecc-off"]),
                ("Tesla", ["gpu-ecc-off"]),
            )
        ],
        (
            "<persistence_mode>Disabled</persistence_mode><display_active>Enabled</display_active>",
            [],
        ),
        (
            "<mig_mode><current_mig>Enabled</current_mig></mig_mode>"
            "<mig_devices><mig_device><index>0</index></mig_device></mig_devices>",
            [],
        ),
        # An idle link is slower on purpose.
        (
            "<pci><pci_gpu_link_info><pcie_gen><max_link_gen>4</max_link_gen><current_link_gen>1"
            "</current_link_gen><max_device_link_gen>4</max_device_link_gen><max_host_link_gen>4"
            "</max_host_link_gen></pcie_gen></pci_gpu_link_info></pci>",
            [],
        ),
        # A guest: the slot's generation is unknown.
        (
            "<pci><pci_gpu_link_info><pcie_gen><max_link_gen>5</max_link_gen><max_device_link_gen>6"
            "</max_device_link_gen><max_host_link_gen>N/A</max_host_link_gen></pcie_gen>"
            "</pci_gpu_link_info></pci>",
            [],
        ),
        # Values that a lost GPU has not are no second fault.
        (
            "<fabric><health><incorrect_configuration>GPU is lost</incorrect_configuration>"
            "<summary>GPU is lost</summary></health></fabric>",
            ["gpu-lost"],
        ),
        # A slot of an older generation is no fault.
        (
            "<pci><pci_gpu_link_info><pcie_gen><max_link_gen>3</max_link_gen><max_device_link_gen>4"
            "</max_device_link_gen><max_host_link_gen>3</max_host_link_gen></pcie_gen>"
            "</pci_gpu_link_info></pci>",
            [],
        ),
    ],
)
def test_judgment_of_one_gpu(body: str, expected: list[str]) -> None:
    name = "<product_name>X</product_name><uuid>GPU-1</uuid>"
    text = XML.format(gpus=f'<gpu id="00000000:01:00.0">{name}{body}</gpu>')
    findings = judge.gpu_findings(gpu_health.parse(text).gpus)
    assert [finding.id for finding in findings] == expected


@pytest.mark.parametrize(
    "text",
    ["", "No devices were found\n", "<nvidia_smi_log><gpu", "Failed to initialize NVML: ..."],
)
def test_an_answer_that_is_no_xml_is_an_error_with_its_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"nvidia-smi|No devices|Failed"):
        gpu_health.parse(text)


GPU_PART = (
    '<gpu id="00000000:0{i}:00.0">\n<product_name>X</product_name>\n<uuid>GPU-{i}</uuid>\n'
    "<ecc_errors><volatile><dram_uncorrectable>{i}</dram_uncorrectable></volatile></ecc_errors>\n</gpu>\n"
)
INFOROM = "WARNING: infoROM is corrupted at gpu 0000:01:00.0\n"


def test_a_message_anywhere_hides_nothing_and_is_kept() -> None:
    text = XML.format(gpus="\n" + "".join(GPU_PART.format(i=i) for i in (1, 2)))
    expected = gpu_health.parse(text)
    assert [gpu.uncorrectable for gpu in expected.gpus] == [1, 2]
    for position in range(len(text)):
        log = gpu_health.parse(text[:position] + INFOROM + text[position:])
        assert log.messages == [INFOROM.strip()]
        assert (log.driver, log.gpus) == (expected.driver, expected.gpus), position


def test_a_missing_end_costs_only_what_is_missing() -> None:
    text = XML.format(gpus="\n" + "".join(GPU_PART.format(i=i) for i in (1, 2)))
    for position in range(text.index("</gpu>") + len("</gpu>"), text.index("</nvidia_smi_log>")):
        log = gpu_health.parse(text[:position])
        assert (log.gpus[0].uncorrectable, log.gpus[0].is_whole, log.is_whole) == (1, True, False)
        assert "smi-incomplete" in [finding.id for finding in judge.log_findings(log)]
        assert not any(gpu.lost for gpu in log.gpus), position


def nvlinks(product: str, gpus: int, rates: list[float | None]) -> list[GpuLinks]:
    return [GpuLinks(i, f"GPU-{i}", dict(enumerate(rates)), product) for i in range(gpus)]


MIG = (
    "<mig_mode><current_mig>Enabled</current_mig></mig_mode>"
    "<mig_devices><mig_device><index>0</index></mig_device></mig_devices>"
)
VGPU = (
    "<gpu_virtualization_mode><virtualization_mode>VGPU</virtualization_mode>"
    "</gpu_virtualization_mode><vgpu_software_licensed_product><license_status>"
    "Licensed (Expiry: N/A)</license_status></vgpu_software_licensed_product>"
)
GUEST = VGPU.replace(">VGPU<", ">Pass-Through<").replace("Licensed (Expiry: N/A)", "N/A")


@pytest.mark.parametrize(
    ("product", "gpus", "rates", "pcie", "watts", "more"),
    [
        ("NVIDIA A100-SXM4-80GB", 8, [25.0] * 12, "4 16 16", 400, ""),
        ("NVIDIA A100-SXM4-80GB", 4, [25.0] * 4 + [None] * 8, "4 16 16", 400, GUEST),
        ("NVIDIA A100 80GB PCIe", 4, [], "4 16 16", 300, ""),
        ("NVIDIA H100 80GB HBM3", 8, [26.562] * 18, "5 16 16", 700, ""),
        ("NVIDIA H100 80GB HBM3", 1, [None] * 18, "5 16 16", 700, GUEST),
        ("NVIDIA H100 80GB HBM3", 8, [None] * 18, "5 16 16", 700, MIG),
        ("NVIDIA H100 PCIe", 2, [26.562] * 12, "5 16 16", 350, ""),
        ("NVIDIA H100 NVL", 8, [26.562] * 12 + [None] * 6, "5 16 16", 400, ""),
        ("NVIDIA H200", 8, [26.562] * 18, "5 16 16", 700, ""),
        ("NVIDIA H200 NVL", 4, [26.562] * 18, "5 16 16", 600, ""),
        ("NVIDIA H20", 8, [26.562] * 18, "5 16 16", 500, ""),
        ("NVIDIA B200", 8, [53.125] * 18, "5 16 16", 1000, ""),
        ("NVIDIA B200", 8, [50.0] * 18, "5 16 16", 1000, ""),
        ("NVIDIA GB200", 4, [50.0] * 18, "6 1 1", 1200, ""),
        ("NVIDIA GB300", 4, [53.125] * 18, "6 1 1", 1400, ""),
        ("NVIDIA GH200 480GB", 1, [], "4 1 1", 900, ""),
        ("NVIDIA L40S", 8, [], "4 16 16", 350, ""),
        ("NVIDIA L40S", 1, [], "4 16 8", 350, GUEST),
        ("NVIDIA L4", 1, [], "4 16 8", 72, GUEST),
        ("NVIDIA A10G", 4, [], "4 16 8", 300, GUEST),
        ("Tesla T4", 1, [], "3 16 8", 70, GUEST),
        ("NVIDIA A40", 2, [14.062] * 4, "4 16 16", 300, ""),
        ("NVIDIA GeForce RTX 3090", 2, [None] * 4, "4 8 8", 350, ""),
        ("NVIDIA GeForce RTX 4090", 2, [], "4 4 4", 450, ""),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", 1, [], "4 16 8", 80, ""),
        ("NVIDIA L40S-2Q", 1, [], "N/A N/A N/A", 0, VGPU),
        ("NVIDIA A100-40C", 2, [], "N/A N/A N/A", 0, VGPU),
        ("Quadro RTX 6000", 2, [25.0] * 2, "3 16 16", 260, ""),
        ("NVIDIA H100XM-80C", 1, [], "5 16 4", 0, VGPU),
    ],
)
def test_healthy_boards_give_no_finding(
    product: str, gpus: int, rates: list[float | None], pcie: str, watts: int, more: str
) -> None:
    generation, max_lanes, lanes = pcie.split()
    power = f"{watts} W" if watts else "N/A"
    body = (
        f"<product_name>{product}</product_name><uuid>GPU-0</uuid>"
        "<gpu_recovery_action>None</gpu_recovery_action><pci><pci_gpu_link_info><pcie_gen>"
        f"<max_link_gen>{generation}</max_link_gen></pcie_gen><link_widths>"
        f"<max_link_width>{max_lanes}x</max_link_width><current_link_width>{lanes}x"
        "</current_link_width></link_widths></pci_gpu_link_info></pci><gpu_power_readings>"
        f"<current_power_limit>{power}</current_power_limit></gpu_power_readings>{more}"
    )
    log = gpu_health.parse(XML.format(gpus=f'<gpu id="00000000:01:00.0">{body}</gpu>' * gpus))
    links = nvlinks(product, gpus, rates)
    found = [*judge.log_findings(log), *judge.gpu_findings(log.gpus)]
    assert [*found, *judge.nvlink_findings(links, {}, log.gpus)] == []
    assert list(judge.fabric_findings(log, None)) == []


@pytest.mark.parametrize(
    ("product", "gpus", "rates"),
    [
        ("NVIDIA H100 80GB HBM3", 8, [26.562] * 9 + [None] * 9),  # half of them, on all GPUs
        ("NVIDIA GB200", 4, []),
        ("NVIDIA A100-SXM4-40GB", 1, [25.0] * 11 + [None]),
        ("NVIDIA H100 PCIe", 2, [26.562] * 11 + [None] * 7),  # both ends of a bridge's link
    ],
)
def test_boards_have_all_of_their_nvlinks(
    product: str, gpus: int, rates: list[float | None]
) -> None:
    found = list(judge.nvlink_findings(nvlinks(product, gpus, rates), {}))
    assert [finding.id for finding, _ in found] == ["nvlink-down"] * gpus


def test_a_gpu_in_mig_mode_hides_no_dead_link_of_another() -> None:
    gpus = nvlinks("NVIDIA H100 80GB HBM3", 2, [])
    health = gpu_health.parse(XML.format(gpus=f'<gpu id="0">{MIG}</gpu><gpu id="1"></gpu>')).gpus
    assert [line.split()[0] for _, line in judge.nvlink_findings(gpus, {}, health)] == ["GPU-1:"]


@pytest.mark.parametrize(
    ("active", "down"),
    [([2, 2], []), ([2, 2, 1], [2]), ([2, 1], [1]), ([0, 0, 2, 2], []), ([2, 2, 0, 2], [2])],
)
def test_nvlinks_of_a_model_that_is_not_known(active: list[int], down: list[int]) -> None:
    """Bridges wire some of the links, and some of the GPUs; a link has two ends."""
    gpus = []
    for index, count in enumerate(active):
        rates = dict(enumerate([25.0] * count + [None] * (4 - count)))
        gpus.append(GpuLinks(index, str(index), rates, "X"))
    found = list(judge.nvlink_findings(gpus, {}))
    assert [int(finding.message.split(":")[0]) for finding, _ in found] == down


@pytest.mark.parametrize(
    ("driver", "cuda", "is_old"),
    [
        ("525.60.13", "12.1", False),
        ("525.60.11", "12.1", True),
        ("470.82.01", "12.1", True),
        ("470.82.01", "11.8", False),
        ("450.51.06", "11.8", True),
        ("575.57.08", "13.0", True),
        ("580.65.06", "13.0", False),
        ("470.82.01", "10.2", False),  # unknown here
        (None, "12.1", False),
        ("470.82.01", None, False),
    ],
)
def test_driver_for_cuda(driver: str | None, cuda: str | None, is_old: bool) -> None:
    assert (judge.driver_finding(driver, cuda) is not None) is is_old


def test_oldest_drivers_are_those_of_the_catalog() -> None:
    toolkits = yaml.safe_load((Path(data_files.__file__).parent / "data/cuda.yml").read_text())
    for cuda, entry in toolkits["toolkits"].items():
        oldest = judge.OLDEST_DRIVERS.get(int(cuda.split(".")[0]))
        if oldest is not None:
            version = entry["driver_floor"]["version"]
            assert tuple(int(number) for number in version.split(".")) == oldest, cuda
