"""Expected bandwidths: what fits which hardware, and between the points."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision_runtime.smoke import bandwidth
from tests.unit.runtime.smoke.builders import GIB

MIB = 1 << 20
H200 = bandwidth.Hardware("NVIDIA H200", 8, 1, nvls=True)


def curve(*points: tuple[int, float]) -> bandwidth.ReferenceCurve:
    return bandwidth.ReferenceCurve("d", 8, tuple(sorted(points)))


# between the points


@given(
    st.dictionaries(st.integers(1, 1 << 40), st.floats(0.001, 2000), min_size=1, max_size=8),
    st.integers(1, 1 << 41),
)
def test_a_curve_stays_within_its_points(points: dict[int, float], size: int) -> None:
    reference_curve = curve(*points.items())
    least, most = min(points.values()), max(points.values())
    assert least * (1 - 1e-9) <= reference_curve.at(size) <= most * (1 + 1e-9)
    assert all(reference_curve.at(point) == rate for point, rate in points.items())


def test_curve_interpolates_by_log_size() -> None:
    reference_curve = curve((MIB, 10.0), (4 * MIB, 30.0))
    assert reference_curve.at(2 * MIB) == pytest.approx(20.0)
    assert (reference_curve.at(1), reference_curve.at(GIB)) == (10.0, 30.0)


def test_below_its_only_point_a_curve_falls_as_the_shape_does() -> None:
    """The table of 8xH200 is 3.9 % lower at 1 GiB than at 16 GiB."""
    curves = bandwidth.load_curves()
    h100 = curves.find(bandwidth.Hardware("NVIDIA H100 80GB HBM3", 8, 1, nvls=True), "all_reduce")
    assert h100 is not None
    assert h100.at(16 * GIB, curves.shape) == 460
    assert h100.at(GIB, curves.shape) == pytest.approx(460 * 463.58 / 482.26)


def test_an_efa_host_with_other_adapters_has_its_curve() -> None:
    hardware = bandwidth.Hardware("NVIDIA B200", 32, 4, "efa,mlx5_core", nvls=True)
    result = bandwidth.load_curves().find(hardware, "all_reduce")
    assert result is not None
    assert result.fabric == "efa"


# what is shipped


def test_every_shipped_curve_names_its_source_and_grows() -> None:
    for shipped in bandwidth.load_curves().curves:
        rates = [rate for _, rate in shipped.points]
        assert shipped.source and shipped.condition
        assert rates == sorted(rates)
        assert shipped.from_bytes >= 512 * MIB


@pytest.mark.parametrize(
    ("hardware", "collective", "size", "gb_s"),
    [
        (H200, "all_reduce", 512 * MIB, 450.29),
        (H200, "all_reduce", 16 * GIB, 482.26),
        (H200, "all_gather", 4 * GIB, 361.4),
        (bandwidth.Hardware("NVIDIA H200", 8, 1, nvls=False), "all_reduce", 4 * GIB, 367.61),
        (bandwidth.Hardware("NVIDIA H200", 4, 1, nvls=True), "all_reduce", 4 * GIB, 363.3),
        (bandwidth.Hardware("NVIDIA H200", 7, 1, nvls=True), "all_reduce", 8 * GIB, 460),
        (bandwidth.Hardware("NVIDIA A100-SXM4-80GB", 8, 1), "all_reduce", 512 * MIB, 222.72),
        (bandwidth.Hardware("NVIDIA A100-SXM4-80GB", 8, 1), "all_reduce", 16 * GIB, 234.89),
        (bandwidth.Hardware("NVIDIA B200", 8, 1, nvls=True), "all_reduce", 512 * MIB, 688.99),
        (bandwidth.Hardware("NVIDIA B200", 8, 1, nvls=False), "all_reduce", 8 * GIB, 682.2),
        (bandwidth.Hardware("NVIDIA B200", 8, 1, nvls=True), "reduce_scatter", 16 * GIB, 692.63),
        # NCCL could sum in the switch, and does from 6 GPUs on.
        (bandwidth.Hardware("NVIDIA B200", 5, 1, nvls=True), "all_reduce", 8 * GIB, 677.8),
        (bandwidth.Hardware("NVIDIA B200", 32, 4, "efa"), "all_reduce", 512 * MIB, 326.9),
        (bandwidth.Hardware("NVIDIA H800", 8, 1, nvls=True), "all_reduce", 16 * GIB, 215),
        (bandwidth.Hardware("NVIDIA H100 80GB HBM3", 8, 1, nvls=True), "all_reduce", 16 * GIB, 460),
        (bandwidth.Hardware("NVIDIA H100 PCIe", 8, 1), "all_reduce", 16 * GIB, 35),
    ],
)
def test_reference_values_are_found_by_hardware(
    hardware: bandwidth.Hardware, collective: str, size: int, gb_s: float
) -> None:
    result = bandwidth.load_curves().find(hardware, collective)
    assert result is not None
    assert result.at(size) == gb_s


@pytest.mark.parametrize(
    "hardware",
    [
        bandwidth.Hardware("NVIDIA L4", 8, 1),
        bandwidth.Hardware("NVIDIA H200", 3, 1, nvls=True),
        bandwidth.Hardware("NVIDIA H200", 32, 4, "efa", nvls=True),
        bandwidth.Hardware("NVIDIA B200", 32, 4, "mlx5_core", nvls=True),
        bandwidth.Hardware("NVIDIA B200", 6, 1, nvls=True),
        # 160 GB/s is healthy without NVLS; the curve is of the sum in the switch.
        bandwidth.Hardware("NVIDIA H800", 8, 1, nvls=False),
        bandwidth.Hardware("NVIDIA H200", 8, 1, backend="gloo"),
    ],
)
def test_unknown_hardware_has_no_reference(hardware: bandwidth.Hardware) -> None:
    assert bandwidth.load_curves().find(hardware, "all_reduce") is None


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
