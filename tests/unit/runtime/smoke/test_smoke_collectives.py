"""Phase collectives, its pure parts: the plan, the formulae, the table over ranks, and verdicts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision_runtime.smoke import measurement, test_values
from provision_runtime.smoke.phases.collectives import plan, results


def scope(**changes: Any) -> plan.Scope:
    usual = {"profile": "default", "device": "cpu", "ranks": 2}
    return plan.Scope(**{**usual, "most_bytes": float("inf"), **changes})


def row(size: int = 1 << 20) -> plan.Row:
    return plan.Row("float32", size, size // 4, 1, 3, 1023)


def entry(times: list[float], **changes: Any) -> Any:
    fine = {"inputs": [0, None], "results": [0, None]}
    return {"times_usec": times, **fine, **changes}


# formulae


def test_busbw_is_algbw_by_the_factor_of_nccl_tests() -> None:
    rates = [measurement.busbw_gb_s(10**9, 1.0, ranks) for ranks in (1, 2, 4, 8, 16)]
    assert rates == [None, 1.0, 1.5, 1.75, 1.875]


# values whose sums are exact


@given(st.sampled_from(sorted(test_values.EXACT)), st.integers(1, 5000))
def test_sums_of_the_largest_values_are_exact(dtype: str, ranks: int) -> None:
    most = test_values.largest(dtype, ranks)
    summed = min(ranks, test_values.EXACT[dtype])
    assert 1 <= summed * most <= test_values.EXACT[dtype]
    # As large as may be.
    assert most == test_values.LARGEST or summed * (most + 1) > test_values.EXACT[dtype]


# plan


@given(
    st.sampled_from(["quick", "default", "full"]),
    st.sampled_from(["cpu", "cuda"]),
    st.integers(1, 300),
)
def test_every_row_is_complete(profile: str, device: str, ranks: int) -> None:
    rows = plan.rows(scope(profile=profile, device=device, ranks=ranks))
    assert len(set(rows)) == len(rows)
    for planned in rows:
        assert planned.bytes == planned.count * plan.ITEM_BYTES[planned.dtype]
        assert planned.iterations >= plan.FEWEST
        assert planned.warm_up >= 1


def test_quick_run_is_in_float32() -> None:
    assert {row.dtype for row in plan.rows(scope(profile="quick", device="cuda"))} == {"float32"}


@pytest.mark.parametrize(("ranks", "largest"), [(64, 512 << 20), (65, 2 << 30)])
def test_a_large_ring_is_measured_at_a_larger_size(ranks: int, largest: int) -> None:
    large = scope(device="cuda", profile="quick", ranks=ranks, most_bytes=1e10)
    assert plan.rows(large)[-1].bytes == largest


def test_default_run_tests_short_dtypes_at_one_size() -> None:
    dtypes = [row.dtype for row in plan.rows(scope())]
    assert (dtypes.count("float32"), dtypes.count("float16")) == (6, 1)


def test_messages_fit_the_memory() -> None:
    rows = plan.rows(scope(device="cuda", profile="full", most_bytes=3e8))
    assert max(row.bytes for row in rows) == 256 << 20


@pytest.mark.parametrize("profile", ["quick", "default", "full"])
@given(device=st.sampled_from(["cpu", "cuda"]), most_bytes=st.floats(0, 1e10))
def test_little_memory_omits_no_row(profile: str, device: str, most_bytes: float) -> None:
    fields = {"device": device, "profile": profile, "ranks": 1}
    little = scope(**fields, most_bytes=most_bytes)
    rows = plan.rows(little)
    assert {row.name for row in rows} == {row.name for row in plan.rows(scope(**fields))}
    assert all(row.bytes <= max(most_bytes, 8) for row in rows)


def test_short_dtype_is_tested_at_the_largest_fitting_size() -> None:
    rows = plan.rows(scope(device="cuda", most_bytes=200e6))
    short = [(row.dtype, row.bytes) for row in rows if row.dtype != "float32"]
    assert short == [("bfloat16", 64 << 20), ("float16", 64 << 20)]


def cores(host: str, cpus: str, quota: float | None = None) -> Any:
    return {"host": host, "cpus": cpus, "quota": quota}


@pytest.mark.parametrize(
    ("ranks", "per_core"),
    [
        ([cores("a", "0x3")] * 16, 8.0),
        ([cores("a", hex(1 << core)) for core in range(4)], 1.0),
        ([cores("a", "0xff", 2.0)] * 4, 2.0),
        ([cores("a", "0xf")] * 2 + [cores("b", "0x1")] * 2, 2.0),
    ],
)
def test_ranks_per_core(ranks: Any, per_core: float) -> None:
    assert measurement.ranks_per_core(ranks) == per_core


# table


def test_bandwidth_comes_from_the_slowest_rank() -> None:
    (row_of_both,) = results.table(
        [row()], [[entry([1000.0] * 3)], [entry([2000.0, 2000.0, 1500.0])]]
    )
    times = [row_of_both[key] for key in ("time_us_max", "time_us_mean")]
    assert (row_of_both["slowest_rank"], times) == (1, [2000.0, 1500.0])
    assert row_of_both["algbw_gb_s"] == row_of_both["busbw_gb_s"] == pytest.approx(0.524288)
    assert row_of_both["time_us_by_rank"] == [1000.0, 2000.0]


def test_single_rank_has_no_busbw() -> None:
    (single,) = results.table([row()], [[entry([1000.0])]])
    assert single["busbw_gb_s"] is None
    assert "busbw not applicable" in results.summary([single])


def test_sender_of_a_wrong_value_is_named_not_the_receivers() -> None:
    received = entry([1.0], results=[1, [7, 5.0, 4]])
    sent: Any = {**received, "inputs": [1, [7, 3.0, 2]]}
    rows = [row(), row(size=8)]
    (finding,) = results.wrong_value_findings(rows, [[received, received], [sent, sent]])
    assert (finding.id, finding.ranks) == ("wrong-value", (1,))
    assert finding.message == (
        "all_reduce of 1 MiB in float32 (and 1 more row): "
        "1 wrong element before they were sent; element 7 is 3 instead of 2"
    )


def test_wrong_sum_of_right_values_names_its_receivers() -> None:
    wrong = entry([1.0], results=[3, [0, 9.0, 8]])
    (finding,) = results.wrong_value_findings([row()], [[entry([1.0])], [wrong]])
    assert (finding.id, finding.ranks) == ("wrong-result", (1,))
    assert results.wrong_value_findings([row()], [[entry([1.0])]]) == []


# repetitions


def seconds_of(rows: list[plan.Row], gb_s: float, ranks: int) -> list[float]:
    """What one all_reduce takes at this busbw."""
    return [2 * (ranks - 1) / ranks * row.bytes / gb_s / 1e9 + 50e-6 for row in rows]


@pytest.mark.parametrize(
    ("name", "ranks", "gb_s"), [("8xL40S", 8, 12.0), ("2x8 over 100 GbE", 16, 6.0)]
)
def test_a_full_run_on_slow_wires_fits_its_time(name: str, ranks: int, gb_s: float) -> None:
    full = scope(profile="full", device="cuda", ranks=ranks)
    rows = plan.rows(full)
    call_s = seconds_of(rows, gb_s, ranks)

    def needed_s(planned: list[plan.Row]) -> float:
        return sum(s * (r.warm_up + r.iterations) for s, r in zip(call_s, planned))

    fitted = plan.fitted(rows, call_s, 75.0)
    assert needed_s(rows) > 75 and needed_s(fitted) < 83, name
    assert min(row.iterations for row in fitted) >= plan.FEWEST


def test_a_fast_run_keeps_its_repetitions() -> None:
    full = scope(profile="full", device="cuda", ranks=8)
    rows = plan.rows(full)
    assert plan.fitted(rows, seconds_of(rows, 400.0, 8), 150.0) == rows
