"""Expected bandwidths and baselines: what fits which hardware, and between the points."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision_runtime.smoke import bandwidth, baseline
from provision_runtime.smoke.phases import compute
from tests.unit.runtime.smoke.builders import GIB, line

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


# baselines


NOW = baseline.Identity("nccl", "NVIDIA H200", 8, 1, "2.3.1+cu121", "2.20.5")


def timed(size: int, median: float, best: float) -> Any:
    return line(1.0, size, time_us_max=median, time_us_min=best)


def compared(
    path: Path, before: Any, now: Any, on_gpu: bool = True, identity: baseline.Identity = NOW
) -> tuple[baseline.Comparison, list[str]]:
    baseline.save(path / "b.json", NOW, [before])
    data, findings = baseline.compare(baseline.load(path / "b.json"), identity, [now], on_gpu)
    return data, [finding.id for finding in findings]


@pytest.mark.parametrize(
    ("now", "on_gpu", "slower"),
    [
        (timed(MIB, 106.0, 95.0), True, 1),
        (timed(MIB, 106.0, 95.0), False, 0),
        (timed(MIB, 104.0, 90.0), True, 0),
        (timed(MIB, 100.0, 271.0), False, 1),
    ],
)
def test_baseline_compares_median_on_gpu_and_best_on_cpu(
    tmp_path: Path, now: Any, on_gpu: bool, slower: int
) -> None:
    data, ids = compared(tmp_path, timed(MIB, 100.0, 90.0), now, on_gpu)
    assert data == {"compared": 1, "slower": slower, "result": "compared"}
    assert ids == ["baseline-regressed"] * slower


def test_latencies_are_recorded_but_not_judged(tmp_path: Path) -> None:
    data, ids = compared(tmp_path, timed(8, 10.0, 9.0), timed(8, 100.0, 90.0))
    assert (data["compared"], ids) == (1, [])


@pytest.mark.parametrize(
    ("changes", "size", "id"),
    [
        ({"backend": "gloo"}, GIB, "baseline-unlike"),
        ({"ranks": 2}, GIB, "baseline-unlike"),
        ({"torch": "2.4.0"}, GIB, "baseline-unlike"),
        ({"nccl": "2.27.7"}, GIB, "baseline-regressed"),
        ({}, 8, "baseline-unlike"),  # another profile: no line in common
    ],
)
def test_only_a_baseline_of_the_same_machine_is_compared(
    tmp_path: Path, changes: dict[str, Any], size: int, id: str
) -> None:
    identity = dataclasses.replace(NOW, **changes)
    data, ids = compared(tmp_path, timed(size, 1.0, 1.0), timed(GIB, 9.0, 9.0), identity=identity)
    assert ids == [id]
    assert bool(data["compared"]) == (id == "baseline-regressed")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"schema": 1, "kind": "smoke"}',
        '{"schema": 1, "kind": "smoke-baseline", "identity": {}, "rows": [{}]}',
        '{"schema": 1, "kind": "smoke-baseline", "rows": 3}',
    ],
)
def test_file_that_is_no_baseline_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(baseline.BaselineUnreadable, match=r"b\.json"):
        baseline.load(tmp_path / "b.json")
    with pytest.raises(baseline.BaselineUnreadable):
        baseline.load(tmp_path / "absent.json")


def test_a_time_that_is_no_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    baseline.save(path, NOW, [timed(MIB, 100.0, 90.0)])
    path.write_text(path.read_text().replace("100.0", '"100"'))
    with pytest.raises(baseline.BaselineUnreadable, match=r"rows\[0\]\.time_us_max"):
        baseline.load(path)


# compute


@given(st.lists(st.floats(1, 100), min_size=1, max_size=20))
def test_ranks_within_a_factor_of_three_are_no_stragglers(rates: list[float]) -> None:
    near = [min(rate, min(rates) * 3) for rate in rates]
    assert compute.stragglers([{"copy": rate} for rate in near], compute.SLOW["cpu"]) == {}


@given(st.integers(2, 64), st.data())
def test_rank_far_below_the_others_is_the_straggler(ranks: int, data: st.DataObject) -> None:
    slow = data.draw(st.integers(0, ranks - 1))
    rates = [{"copy": 1.0 if rank == slow else 10.0} for rank in range(ranks)]
    assert compute.stragglers(rates, compute.SLOW["cpu"]) == {"copy": [slow]}


def test_ranks_sharing_a_core_or_a_gpu_are_not_judged() -> None:
    rank: Any = {"host": "a", "cpus": "0x3", "quota": None}
    assert compute.why_not_judged([rank] * 2, [""] * 2) == ""
    assert compute.why_not_judged([rank] * 16, [""] * 16) == "not judged: 16 ranks on 2 cores"
    assert compute.why_not_judged([rank] * 16, [f"GPU-{n}" for n in range(16)]) == ""
    assert compute.why_not_judged([rank] * 2, ["GPU-1"] * 2) == "not judged: ranks share a GPU"
    assert compute.why_not_judged([rank], [""]) != ""


def test_better_of_two_measurements_counts() -> None:
    first, second = {"copy": 1.0, "matmul_float32": 5.0}, {"copy": 4.0, "matmul_float32": 2.0}
    assert compute.best_rates(first, second) == {"copy": 4.0, "matmul_float32": 5.0}


@pytest.mark.parametrize(
    ("share", "finding_id"),
    [
        (1.0, ""),
        (0.9, ""),
        (0.899, "bandwidth-reduced"),
        (0.8, "bandwidth-reduced"),
        (0.799, "bandwidth-low"),
    ],
)
def test_limits_of_the_verdicts_belong_to_the_better_one(share: float, finding_id: str) -> None:
    one_curve = bandwidth.ReferenceCurves((curve((MIB, 100.0), (GIB, 100.0)),))
    hardware = bandwidth.Hardware("d", 8, 1)
    assert bandwidth.judge_line(line(share * 100), hardware, one_curve).finding_id == finding_id


def test_a_size_at_the_curves_first_judged_one_is_judged() -> None:
    from_gib = bandwidth.ReferenceCurve("d", 8, ((GIB, 100.0),), from_bytes=GIB)
    curves, hardware = bandwidth.ReferenceCurves((from_gib,)), bandwidth.Hardware("d", 8, 1)
    for size, finding_id in ((GIB - 1, ""), (GIB, "bandwidth-low")):
        assert bandwidth.judge_line(line(1.0, size), hardware, curves).finding_id == finding_id
