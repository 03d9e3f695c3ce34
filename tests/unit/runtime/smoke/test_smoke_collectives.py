"""Phase collectives, its pure parts: the plan, the formulae, the table over ranks, verdicts, and nccl-tests' JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision_runtime.smoke import bandwidth, measurement, test_values
from provision_runtime.smoke.phases import collectives
from provision_runtime.smoke.phases.collectives import (
    nccl_tests,
    operations,
    plan,
    results,
)

GIB = 1 << 30
COLLECTIVES = (plan.ALL_REDUCE, *plan.OPTIONAL)


def scope(**changes: Any) -> plan.Scope:
    return plan.Scope(
        **{
            "profile": "default",
            "device": "cpu",
            "ranks": 2,
            "most_bytes": float("inf"),
            "crowding": 1.0,
            **changes,
        }
    )


def row(collective: str = "all_reduce", dtype: str = "float32", size: int = 1 << 20) -> plan.Row:
    return plan.Row(collective, dtype, size, size // plan.ITEM_BYTES[dtype], 1, 3, 1023)


def entry(times: list[float], **changes: Any) -> dict[str, Any]:
    fine = {"wrong": [0, 0], "first_wrong": None, "inputs_wrong": 0, "inputs_first_wrong": None}
    return {"out_of_place": times, "in_place": times, **fine, **changes}


# formulae


@pytest.mark.parametrize(
    ("collective", "factors"),
    [
        ("all_reduce", [1.0, 1.5, 1.75, 1.875]),
        ("reduce_scatter", [0.5, 0.75, 0.875, 0.9375]),
        ("all_gather", [0.5, 0.75, 0.875, 0.9375]),
        ("all_to_all", [0.5, 0.75, 0.875, 0.9375]),
        ("broadcast", [1, 1, 1, 1]),
        ("send_recv", [1, 1, 1, 1]),
    ],
)
def test_busbw_is_algbw_by_the_factor_of_nccl_tests(collective: str, factors: list[float]) -> None:
    assert [measurement.bus_factor(collective, ranks) for ranks in (2, 4, 8, 16)] == factors


@given(
    st.sampled_from(COLLECTIVES), st.integers(1, 1 << 34), st.floats(1e-6, 10), st.integers(2, 4096)
)
def test_busbw_is_between_half_and_twice_algbw(
    collective: str, size: int, seconds: float, ranks: int
) -> None:
    algbw, busbw = (
        measurement.algbw_gb_s(size, seconds),
        measurement.busbw_gb_s(collective, size, seconds, ranks),
    )
    assert busbw is not None
    assert 0.5 * algbw <= busbw * (1 + 1e-12)
    assert busbw <= 2 * algbw
    assert measurement.busbw_gb_s(collective, size, seconds, 1) is None


@given(st.integers(2, 512), st.floats(1.0, 500.0))
def test_ring_link_bandwidth_equals_busbw(ranks: int, link_gb_s: float) -> None:
    """t = S * 2(n-1) / (n B): the derivation of nccl-tests' doc/PERFORMANCE.md, backwards."""
    seconds = 1e9 * 2 * (ranks - 1) / (ranks * link_gb_s * 1e9)
    assert measurement.busbw_gb_s("all_reduce", 10**9, seconds, ranks) == pytest.approx(link_gb_s)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_deviation_covers_all_values(times: list[float]) -> None:
    assert 0 <= measurement.deviation(times) <= max(times) - min(times) + 1e-6


# values whose sums are exact


@given(st.sampled_from(sorted(test_values.EXACT)), st.integers(1, 5000))
def test_sums_of_the_largest_values_are_exact(dtype: str, ranks: int) -> None:
    most = test_values.largest(dtype, ranks)
    assert most & (most + 1) == 0  # a mask
    assert ranks * most <= test_values.EXACT[dtype]
    assert (
        most == test_values.LARGEST or ranks * (2 * most + 1) > test_values.EXACT[dtype]
    )  # as large as may be


@pytest.mark.parametrize(
    ("dtype", "ranks", "most"),
    [("float32", 64, 1023), ("float16", 64, 31), ("bfloat16", 64, 3), ("bfloat16", 2, 127)],
)
def test_largest_value_shrinks_with_the_ranks(dtype: str, ranks: int, most: int) -> None:
    assert test_values.largest(dtype, ranks) == most


def test_too_many_ranks_for_a_dtype_are_reported() -> None:
    assert plan.why_unsuited("all_reduce", "bfloat16", 256) == ""
    assert (
        plan.why_unsuited("all_reduce", "bfloat16", 257)
        == "sums over 257 ranks are not exact in bfloat16"
    )
    assert plan.why_unsuited("all_gather", "bfloat16", 257) == ""
    assert plan.why_unsuited("send_recv", "float32", 1) == "not applicable to one rank"


# plan


@given(
    st.sampled_from(["quick", "default", "full"]),
    st.sampled_from(["cpu", "cuda"]),
    st.integers(1, 300),
    st.floats(1, 100),
)
def test_every_row_is_complete(profile: str, device: str, ranks: int, crowding: float) -> None:
    given_scope = scope(profile=profile, device=device, ranks=ranks, crowding=crowding)
    rows = plan.rows(given_scope, plan.candidates(given_scope))
    assert len(set(rows)) == len(rows)
    for each in rows:
        shares = ranks if each.collective in plan.DIVIDED else 1
        assert each.bytes == each.count * shares * plan.ITEM_BYTES[each.dtype]
        assert each.iterations >= plan.FEWEST
        assert each.warm_up >= 1


def test_quick_run_is_all_reduce_in_float32() -> None:
    assert plan.candidates(scope(profile="quick")) == [("all_reduce", "float32")]


def test_default_run_tests_short_dtypes_at_one_size() -> None:
    rows = plan.rows(scope(), plan.candidates(scope()))
    assert {(r.collective, r.dtype): sum(q.name == r.name for q in rows) for r in rows} == {
        ("all_reduce", "float32"): 6,
        ("all_reduce", "bfloat16"): 1,
        ("all_reduce", "float16"): 1,
    }


def test_full_run_has_every_collective() -> None:
    assert {collective for collective, _ in plan.candidates(scope(profile="full"))} == set(
        COLLECTIVES
    )


def test_ranks_sharing_cores_repeat_less_and_send_less() -> None:
    uncrowded, crowded = (
        plan.rows(scope(crowding=crowding), [("all_reduce", "float32")]) for crowding in (1.0, 32.0)
    )
    assert (uncrowded[0].iterations, crowded[0].iterations) == (100, 3)
    assert (uncrowded[-1].bytes, crowded[-1].bytes) == (16 << 20, 256 << 10)


def test_messages_fit_the_memory() -> None:
    rows = plan.rows(
        scope(device="cuda", profile="full", most_bytes=3e8), [("all_reduce", "float32")]
    )
    assert rows[-1].bytes == 256 << 20


@pytest.mark.parametrize("profile", ["quick", "default", "full"])
@given(device=st.sampled_from(["cpu", "cuda"]), most_bytes=st.floats(0, 1e10))
def test_little_memory_omits_no_row(profile: str, device: str, most_bytes: float) -> None:
    little = scope(device=device, profile=profile, most_bytes=most_bytes, ranks=1)
    rows = plan.rows(little, plan.candidates(little))
    assert {(row.collective, row.dtype) for row in rows} == set(plan.candidates(little))
    assert all(row.bytes <= max(most_bytes, 8) for row in rows)


def test_short_dtype_is_tested_at_the_largest_fitting_size() -> None:
    rows = plan.rows(
        scope(device="cuda", most_bytes=200e6),
        [("all_reduce", "bfloat16"), ("all_reduce", "float16")],
    )
    assert [(row.dtype, row.bytes) for row in rows] == [
        ("bfloat16", 64 << 20),
        ("float16", 64 << 20),
    ]


@pytest.mark.parametrize(
    ("rank_cpus", "per_core"),
    [
        ([{"host": "a", "cpus": "0x3", "quota": None}] * 16, 8.0),
        (
            [{"host": "a", "cpus": hex(1 << core), "quota": None} for core in range(4)],
            1.0,
        ),  # each bound to a core of its own
        ([{"host": "a", "cpus": "0xff", "quota": 2.0}] * 4, 2.0),
        (
            [{"host": "a", "cpus": "0xf", "quota": None}] * 2
            + [{"host": "b", "cpus": "0x1", "quota": None}] * 2,
            2.0,
        ),
    ],
)
def test_ranks_per_core(rank_cpus: list[dict[str, Any]], per_core: float) -> None:
    assert measurement.ranks_per_core(rank_cpus) == per_core


# table


def test_bandwidth_comes_from_the_slowest_rank() -> None:
    (line,) = results.table([row()], [[entry([1000.0] * 3)], [entry([2000.0, 2000.0, 1500.0])]])
    assert (
        line["slowest_rank"],
        line["time_us_max"],
        line["time_us_mean"],
        line["time_us_min"],
    ) == (1, 2000.0, 1500.0, 1500.0)
    assert line["algbw_gb_s"] == line["busbw_gb_s"] == pytest.approx(0.524288)
    assert line["time_us_by_rank"] == [1000.0, 2000.0]


def test_single_rank_has_no_busbw_and_no_verdict() -> None:
    (line,) = results.table([row()], [[entry([1000.0])]])
    assert line["busbw_gb_s"] is None
    assert "busbw not applicable" in results.summary([line])
    assert (
        bandwidth.judge_line(
            line, bandwidth.Hardware("NVIDIA H200", 1, 1), bandwidth.load_curves()
        ).remark
        == "n = 1: not applicable"
    )


def test_in_place_failure_is_reported() -> None:
    result = {**entry([1.0], wrong=[0, None])}
    del result["in_place"]
    (line,) = results.table([row("all_to_all")], [[result], [result]])
    assert line["in_place"] is None


def test_sender_of_a_wrong_value_is_named_not_the_receivers() -> None:
    received = entry([1.0], wrong=[1, 1], first_wrong=[7, 5.0, 4])
    sent = entry(
        [1.0], wrong=[1, 1], first_wrong=[7, 5.0, 4], inputs_wrong=1, inputs_first_wrong=[7, 3.0, 2]
    )
    (finding,) = results.wrong_value_findings(
        [row(), row(size=8)], [[received, received], [sent, sent]]
    )
    assert (finding.id, finding.ranks) == ("wrong-value", (1,))
    assert finding.message == (
        "all_reduce of 1 MiB in float32 (and 1 more row): "
        "1 wrong element before they were sent; element 7 is 3 instead of 2"
    )


def test_wrong_sum_of_right_values_names_its_receivers() -> None:
    findings = results.wrong_value_findings(
        [row()], [[entry([1.0])], [entry([1.0], wrong=[3, 0], first_wrong=[0, 9.0, 8])]]
    )
    assert [(finding.id, finding.ranks) for finding in findings] == [("wrong-result", (1,))]
    assert "3 wrong elements in the result" in findings[0].message
    assert results.wrong_value_findings([row()], [[entry([1.0])]]) == ()


# verdicts


def curve(**changes: Any) -> bandwidth.ReferenceCurve:
    return bandwidth.ReferenceCurve(
        **{"device": "NVIDIA X*", "ranks": 8, "points": ((GIB, 100.0),), **changes}
    )


def judged(
    busbw: float | None,
    size: int = GIB,
    device: str = "NVIDIA X1",
    wires: tuple[tuple[str, float], ...] = (),
    backend: str = "nccl",
) -> bandwidth.LineVerdict:
    curves = bandwidth.ReferenceCurves((curve(),), wires)
    line = {"collective": "all_reduce", "dtype": "float32", "bytes": size, "busbw_gb_s": busbw}
    return bandwidth.judge_line(line, bandwidth.Hardware(device, 8, 1, backend=backend), curves)


@given(st.floats(0.1, 1000))
def test_bands_are_at_90_and_80_percent(busbw: float) -> None:
    expected = (
        "" if busbw / 100 >= 0.9 else "bandwidth-reduced" if busbw / 100 >= 0.8 else "bandwidth-low"
    )
    assert judged(busbw).finding_id == expected


@given(st.floats(0.1, 1000), st.integers(1, 512 * (1 << 20) - 1))
def test_small_messages_are_never_judged(busbw: float, size: int) -> None:
    assert (judged(busbw, size).finding_id, judged(busbw, size).remark) == (
        "",
        "size too small to judge",
    )


def test_results_without_findings() -> None:
    assert judged(5.0, device="NVIDIA Y1") == bandwidth.LineVerdict("not known for this hardware")
    assert judged(5.0, device="cpu") == bandwidth.LineVerdict("Gloo on CPUs: not judged")
    assert judged(5.0, backend="gloo") == bandwidth.LineVerdict(
        "Gloo moves GPU tensors through the host: not judged"
    )
    assert judged(None) == bandwidth.LineVerdict("n = 1: not applicable")
    above = judged(130.0, wires=(("NVIDIA X*", 120.0),))
    assert (above.finding_id, above.remark) == (
        "",
        "fine; above the wire's 120 GB/s, as the switch adds up (NVLS)",
    )


def test_finding_is_the_worst_row_and_names_its_reference() -> None:
    curves = bandwidth.ReferenceCurves((curve(algorithm="ring", source="there"),))
    lines = [
        {"collective": "all_reduce", "dtype": "float32", "bytes": size, "busbw_gb_s": rate}
        for size, rate in ((GIB, 85.0), (2 * GIB, 70.0))
    ]
    answered, findings = bandwidth.judge_lines(lines, bandwidth.Hardware("NVIDIA X1", 8, 1), curves)
    assert [line["judged"] for line in answered] == [
        "85% of what is expected",
        "70% of what is expected",
    ]
    assert [(finding.id, finding.ranks) for finding in findings] == [
        ("bandwidth-low", tuple(range(8)))
    ]
    assert findings[0].message == (
        "all_reduce of 2 GiB in float32: busbw 70 GB/s, 70% of what is expected: 100 GB/s for NVIDIA X* x 8 ring (there)"
    )


def test_advice_mentions_in_switch_reduction() -> None:
    line = {"collective": "all_reduce", "dtype": "float32", "bytes": 4 * GIB, "busbw_gb_s": 367.6}
    switched, ring = (bandwidth.Hardware("NVIDIA H200", 8, 1, nvls=nvls) for nvls in (True, False))
    (finding,) = bandwidth.judge_lines([line], switched, bandwidth.load_curves())[1]
    assert (finding.id, finding.advice) == ("bandwidth-low", bandwidth.NVLS_ADVICE)
    assert bandwidth.judge_lines([line], ring, bandwidth.load_curves())[1] == ()


# what a backend does not have


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Invalid scalar type"),
        RuntimeError("ProcessGroupGloo does not support reduce_scatter"),
        RuntimeError("no support for _reduce_scatter_base in Gloo process group"),
        RuntimeError("ProcessGroupGloo::allgather: unsupported device type cuda"),
        AttributeError("module 'torch.distributed' has no attribute 'reduce_scatter_tensor'"),
    ],
)
def test_refusal_is_distinguished_from_failure(error: Exception) -> None:
    assert operations.is_refusal(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Connection closed by peer [127.0.0.1]:68"),
        RuntimeError("NCCL error: unhandled system error"),
        KeyError("x"),
    ],
)
def test_failure_is_no_refusal(error: Exception) -> None:
    assert not operations.is_refusal(error)


def test_fabric_is_named_after_its_driver(tmp_path: Path) -> None:
    for card, driver in (("rdmap0s6", "efa"), ("rdmap1s6", "efa")):
        (tmp_path / "cards" / card / "device").mkdir(parents=True)
        (tmp_path / driver).mkdir(exist_ok=True)
        (tmp_path / "cards" / card / "device" / "driver").symlink_to(tmp_path / driver)
    assert collectives.fabric(tmp_path / "cards") == "efa"
    assert collectives.fabric(tmp_path / "absent") == ""


# nccl-tests' JSON


def run(**changes: Any) -> nccl_tests.RunInfo:
    devices = [
        nccl_tests.Device(rank, 100 + rank, "node1", rank, "0000:1b:00", "NVIDIA H200")
        for rank in range(2)
    ]
    fields = {
        "start_time": "2026-11-21 18:00:00",
        "end_time": "2026-11-21 18:00:09",
        "arguments": ["smoke"],
        "environment": ["NCCL_DEBUG=INFO"],
        "nccl_version": "2.20.5",
        "devices": devices,
        "on_gpu": True,
    }
    return nccl_tests.RunInfo(**{**fields, **changes})


def document(rows: list[plan.Row] | None = None, **changes: Any) -> dict[str, Any]:
    rows = rows or [row(size=8 << shift) for shift in range(3)]
    answers = [[entry([10.0, 20.0, 30.0]) for _ in rows], [entry([12.0, 18.0, 36.0]) for _ in rows]]
    return dict(json.loads(json.dumps(nccl_tests.document(run(**changes), rows, answers))))


def test_keys_are_those_of_nccl_tests() -> None:
    """As src/util.cu of nccl-tests 2.19 writes them, in its order."""
    nccl_document = document()
    assert list(nccl_document) == [
        *("version", "start_time", "args", "env", "nccl_version", "config", "results"),
        *("out_of_bounds", "average_bus_bandwidth", "errors", "end_time"),
    ]
    assert {
        "minimum_bytes",
        "maximum_bytes",
        "step_factor",
        "warmup_iters",
        "iterations",
        "devices",
    } <= set(nccl_document["config"])
    assert list(nccl_document["config"]["devices"][0]) == [
        "rank",
        "group",
        "pid",
        "hostname",
        "device",
        "device_hex",
        "device_info",
    ]
    result = nccl_document["results"][0]
    assert list(result) == [
        *("size", "count", "type", "redop", "root"),
        *("out_of_place", "out_of_place_per_iter", "in_place", "in_place_per_iter"),
        *("actual_iterations", "experiment_name"),
    ]
    assert list(result["out_of_place"]) == ["time", "alg_bw", "bus_bw", "nwrong"]
    assert list(result["in_place_per_iter"]) == [
        *(
            "min_us",
            "max_us",
            "avg_us",
            "p50_us",
            "p95_us",
            "p99_us",
            "stdev_us",
            "cv_pct",
            "times_us",
            "per_process_max_times_us",
        ),
    ]


def test_times_are_of_the_slowest_rank_per_iteration() -> None:
    nccl_document = document()
    result = nccl_document["results"][0]
    assert result["out_of_place_per_iter"]["times_us"] == [12.0, 20.0, 36.0]
    assert result["out_of_place"]["time"] == pytest.approx(68 / 3)
    assert (result["type"], result["redop"], result["root"]) == ("float", "sum", "    -1")
    assert (
        nccl_document["nccl_version"],
        nccl_document["out_of_bounds"],
        nccl_document["config"]["step_factor"],
    ) == (
        22005,
        {"count": 0, "okay": "true"},
        2,
    )
    rates = [
        entry["bus_bw"]
        for r in nccl_document["results"]
        for entry in (r["out_of_place"], r["in_place"])
    ]
    assert nccl_document["average_bus_bandwidth"] == {
        "bandwidth": pytest.approx(sum(rates) / 6),
        "okay": "unchecked",
    }


def test_wrong_elements_of_both_placements_are_counted() -> None:
    result = nccl_tests.document(run(), [row()], [[entry([1.0])], [entry([1.0], wrong=[2, 1])]])
    assert result["out_of_bounds"] == {"count": 3, "okay": "false"}


@pytest.mark.parametrize(
    ("collective", "dtype", "name"),
    [
        ("all_reduce", "float32", "nccl-tests.json"),
        ("all_reduce", "bfloat16", "nccl-tests-bfloat16.json"),
        ("send_recv", "float32", "nccl-tests-send_recv.json"),
        ("reduce_scatter", "float16", "nccl-tests-reduce_scatter-float16.json"),
    ],
)
def test_one_document_per_collective_and_dtype(collective: str, dtype: str, name: str) -> None:
    assert nccl_tests.file_name(collective, dtype) == name


@pytest.mark.parametrize(
    ("version", "code"), [("2.20.5", 22005), ("2.27.7", 22707), ("2.14", 21400), (None, 0)]
)
def test_nccl_version_code(version: str | None, code: int) -> None:
    assert nccl_tests.nccl_code(version) == code


def seconds_of(rows: list[plan.Row], gb_s: float, ranks: int) -> list[float]:
    """What one all_reduce takes at this busbw."""
    return [2 * (ranks - 1) / ranks * row.bytes / gb_s / 1e9 + 50e-6 for row in rows]


@pytest.mark.parametrize(
    ("name", "ranks", "gb_s"), [("8xL40S", 8, 12.0), ("2x8 over 100 GbE", 16, 6.0)]
)
def test_a_full_run_on_slow_wires_fits_its_time(name: str, ranks: int, gb_s: float) -> None:
    full = scope(profile="full", device="cuda", ranks=ranks)
    rows = plan.rows(full, plan.candidates(full))
    call_s = seconds_of(rows, gb_s, ranks)
    planned_s = sum(s * (r.warm_up + r.iterations) * 2 for s, r in zip(call_s, rows))
    assert planned_s > 150, name
    fitted = plan.fitted(rows, call_s, 150.0)
    assert sum(s * (r.warm_up + r.iterations) * 2 for s, r in zip(call_s, fitted)) < 165
    assert min(row.iterations for row in fitted) >= plan.FEWEST


def test_a_fast_run_keeps_its_repetitions() -> None:
    full = scope(profile="full", device="cuda", ranks=8)
    rows = plan.rows(full, plan.candidates(full))
    assert plan.fitted(rows, seconds_of(rows, 400.0, 8), 150.0) == rows
