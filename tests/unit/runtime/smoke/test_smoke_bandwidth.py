"""Published bandwidths: what fits which hardware, and what is judged by them."""

from __future__ import annotations

import pytest

from provision_runtime.report.codec import packaged_json
from provision_runtime.smoke import bandwidth
from tests.unit.runtime.smoke.builders import GIB, line

MIB = 1 << 20
H200 = bandwidth.Hardware("NVIDIA H200", 8, 1, nvls=True)
H200_RING = bandwidth.Hardware("NVIDIA H200", 8, 1)
A100 = bandwidth.Hardware("NVIDIA A100-SXM4-80GB", 8, 1)


def test_every_figure_names_its_source() -> None:
    for row in packaged_json("provision_runtime.smoke", "bandwidth_reference.json")["published"]:
        assert row["source"] and row["condition"]


@pytest.mark.parametrize(
    ("hardware", "gb_s"),
    [
        (H200, 482.26),
        (H200_RING, 367.61),
        (bandwidth.Hardware("NVIDIA H200", 4, 1, nvls=True), 363.3),
        (bandwidth.Hardware("NVIDIA H200", 7, 1, nvls=True), 460),
        (A100, 234.89),
        (bandwidth.Hardware("NVIDIA B200", 8, 1, nvls=True), 845.67),
        (bandwidth.Hardware("NVIDIA B200", 8, 1), 682.2),
        # NCCL could sum in the switch, and does from 6 GPUs on.
        (bandwidth.Hardware("NVIDIA B200", 5, 1, nvls=True), 677.8),
        (bandwidth.Hardware("NVIDIA H800", 8, 1, nvls=True), 215),
        (bandwidth.Hardware("NVIDIA H100 80GB HBM3", 8, 1, nvls=True), 460),
        (bandwidth.Hardware("NVIDIA H100 PCIe", 8, 1), 35),
    ],
)
def test_figures_are_found_by_hardware(hardware: bandwidth.Hardware, gb_s: float) -> None:
    row = bandwidth.published(hardware)
    assert row is not None
    assert row["gb_s"] == gb_s


@pytest.mark.parametrize(
    "hardware",
    [
        bandwidth.Hardware("NVIDIA L4", 8, 1),
        bandwidth.Hardware("NVIDIA H200", 3, 1, nvls=True),
        bandwidth.Hardware("NVIDIA H200", 8, 4, nvls=True),
        bandwidth.Hardware("NVIDIA B200", 6, 1, nvls=True),
        # 160 GB/s is healthy without NVLS; the figure is of the sum in the switch.
        bandwidth.Hardware("NVIDIA H800", 8, 1, nvls=False),
        bandwidth.Hardware("NVIDIA H200", 8, 1, backend="gloo"),
    ],
)
def test_unknown_hardware_has_no_figure(hardware: bandwidth.Hardware) -> None:
    assert bandwidth.published(hardware) is None


def judged(
    busbw: float | None, hardware: bandwidth.Hardware, size: int = 16 * GIB
) -> tuple[list[str], str]:
    """The ids of the findings, and the remark."""
    measured = line(busbw, size)
    findings = bandwidth.judge_lines([measured], hardware)
    return [finding.id for finding in findings], measured["judged"]


@pytest.mark.parametrize(
    ("share", "found"),
    [(0.9, []), (0.89, ["bandwidth-reduced"]), (0.8, ["bandwidth-reduced"]), (0.79, ["bandwidth-low"])],
)  # fmt: skip
def test_the_share_of_the_figure_decides(share: float, found: list[str]) -> None:
    # At this size the message shows the whole rate.
    assert judged(share * 482.26, H200, 1 << 60)[0] == found


@pytest.mark.parametrize(
    ("size", "busbw"), [(512 * MIB, 450.29), (GIB, 463.58), (4 * GIB, 473.1), (16 * GIB, 482.26)]
)
def test_a_smaller_message_shows_less_of_the_rate(size: int, busbw: float) -> None:
    """The table of 8xH200, and a quarter less."""
    assert judged(busbw, H200, size)[0] == []
    assert judged(0.75 * busbw, H200, size)[0] in (["bandwidth-reduced"], ["bandwidth-low"])


def test_lines_without_findings() -> None:
    other = bandwidth.Hardware("NVIDIA Y1", 8, 1)
    assert judged(5.0, other) == ([], bandwidth.UNKNOWN)
    on_cpu = bandwidth.Hardware("cpu", 8, 1, backend="gloo")
    assert judged(5.0, on_cpu) == ([], bandwidth.REHEARSAL)
    through_host = bandwidth.Hardware("NVIDIA H200", 8, 1, backend="gloo")
    assert judged(5.0, through_host) == ([], bandwidth.THROUGH_THE_HOST)
    assert judged(None, H200) == ([], bandwidth.ONE_RANK)
    assert judged(5.0, H200, 256 * MIB) == ([], bandwidth.TOO_SMALL)


def test_finding_is_the_worst_row_and_names_its_source() -> None:
    lines = [line(200.0, 1 << 60), line(150.0, 1 << 61)]
    (finding,) = bandwidth.judge_lines(lines, A100)
    assert [each["judged"].split()[0] for each in lines] == ["85%", "64%"]
    assert (finding.id, finding.ranks) == ("bandwidth-low", tuple(range(8)))
    assert "64% of what is published of NVIDIA A100-SXM4 x 8 (ring) (234.9 GB/s)" in finding.message
    assert "(stas00/ml-engineering:" in finding.message


def test_advice_mentions_in_switch_reduction() -> None:
    (finding,) = bandwidth.judge_lines([line(367.6, 4 * GIB)], H200)
    assert (finding.id, finding.advice) == ("bandwidth-low", bandwidth.NVLS_ADVICE)
    assert bandwidth.judge_lines([line(367.6, 4 * GIB)], H200_RING) == []


@pytest.mark.parametrize(
    ("environment", "nccl", "expected"),
    [
        ({}, "2.20.5", True),
        ({}, "2.14.3", False),
        ({}, "2.16.5", False),
        ({}, "2.17.1", True),
        ({}, None, False),
        ({"NCCL_NVLS_ENABLE": "0"}, "2.20.5", False),
        ({"NCCL_ALGO": "Ring"}, "2.20.5", False),
        ({"NCCL_ALGO": "Ring,NVLS"}, "2.20.5", True),
    ],
)
def test_in_switch_reduction_support(
    environment: dict[str, str], nccl: str | None, expected: bool
) -> None:
    assert bandwidth.may_use_nvls(environment, nccl) is expected
