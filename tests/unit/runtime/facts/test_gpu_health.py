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
    text = XML.format(gpus=f'<gpu id="00000000:01:00.0">{body}</gpu>')
    findings = judge.gpu_findings(gpu_health.parse(text).gpus)
    assert [finding.id for finding in findings] == expected


@pytest.mark.parametrize(
    "text",
    ["", "No devices were found\n", "<nvidia_smi_log><gpu>", "Failed to initialize NVML: ..."],
)
def test_an_answer_that_is_no_xml_is_an_error_with_its_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"nvidia-smi|No devices|Failed"):
        gpu_health.parse(text)


def test_warnings_before_the_xml_do_no_harm() -> None:
    text = "WARNING: infoROM is corrupted at gpu 0000:01:00.0\n" + XML.format(gpus="")
    assert gpu_health.parse(text) == gpu_health.DriverLog("470.82.01", [])


def test_links_that_no_gpu_uses_are_no_fault() -> None:
    """Bridges of two GPUs wire some of the links only."""
    gpus = [GpuLinks(0, uuid, {0: 25.0, 1: 25.0, 2: None, 3: None}) for uuid in ("a", "b")]
    assert judge.nvlink_findings(gpus, {}) == []
    gpus = [GpuLinks(0, uuid, {0: 25.0, 1: 25.0}) for uuid in ("a", "b", "c")]
    gpus[2].rates_gb_s[1] = None
    findings = judge.nvlink_findings(gpus, {})
    assert [(finding.id, finding.message) for finding in findings] == [
        ("nvlink-down", "c: NVLink 1 is inactive")
    ]


def test_only_xids_of_the_hardware_count() -> None:
    text = (
        "[Mon Nov 23 2026] NVRM: Xid (PCI:0000:1b:00): 13, pid=77, Graphics Exception\n"
        "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"
        "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.\n"
    )
    findings = judge.xid_findings(gpu_health.parse_xids(text))
    assert [finding.message for finding in findings] == [
        "Xid 79 (GPU has fallen off the bus) 2 times on 0000:1b:00"
    ]


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
