"""The contents of a report page: read strictly, nothing invented, every run with its own label."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provision import report
from provision.core.errors import IntegrityError, InvalidSpec
from provision.report import measures
from tests import evidence
from tests.evidence import MIB, collectives, finding, passport, phase, row
from tests.paths import DATA

SAMPLE = DATA / "smoke-report.json"


def page_of(tmp_path: Path, *documents: dict[str, Any]) -> report.Page:
    return report.build_page(
        [
            report.load(evidence.write(tmp_path / str(place) / "p.json", document))
            for place, document in enumerate(documents)
        ]
    )


def read_text(tmp_path: Path, text: str) -> report.EvidenceFile:
    (tmp_path / "p.json").write_text(text)
    return report.load(tmp_path / "p.json")


@pytest.mark.parametrize("text, message", [
    ("", "is not JSON"),
    ('{"schema": 1', "is not JSON"),
    ("[" * 100_000, "is not JSON"),
    ('{"schema": NaN}', "NaN is not a number"),
    ('{"schema": 1e999}', "1e999 is too large"),
    ("[]", "not a passport or a smoke report"),
    ('{"name": "lab"}', "not a passport or a smoke report"),
    ('{"schema": 7, "made_by": "provision 9.0"}', r"of schema 7, and this provision reads schema 1"),
    ('{"schema": true}', "is damaged: at the top|is damaged: at schema"),
    ('{"schema": 1, "kind": "smoke"}', "of schema 1, and this provision reads schema 2"),
    ('{"schema": 2, "kind": "smoke"}', "is damaged: at the top"),
])  # fmt: skip
def test_incomplete_document_is_refused_with_a_message(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(IntegrityError, match=message) as refused:
        read_text(tmp_path, text)
    assert refused.value.advice
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize("change, where", [
    ({"lock": {"sha256": "x", "packages": "many", "portable": True}}, "lock.packages"),
    ({"pins": [{"manager": "conda", "requirement": "numpy", "reason": None, "source": "x"}]}, r"pins\[0\].reason"),
    ({"image": {"reference": "x"}}, "image"),
    ({"smoke": {"prefix": {"verdict": "splendid", "measured_on": {}, "report": {}}}}, "smoke.prefix.verdict"),
])  # fmt: skip
def test_damaged_passport_is_refused_naming_the_field(
    tmp_path: Path, change: dict[str, Any], where: str
) -> None:
    with pytest.raises(IntegrityError, match=f"damaged: at {where}"):
        page_of(tmp_path, passport(**change))


@pytest.mark.parametrize("change, where", [
    ({"bytes": 0}, r"phases\[0\].data.rows\[0\].bytes"),
    ({"bytes": 10**400}, r"phases\[0\].data.rows\[0\].bytes"),
    ({"time_us_max": "fast"}, r"phases\[0\].data.rows\[0\].time_us_max"),
    ({"busbw_gb_s": -1}, r"phases\[0\].data.rows\[0\].busbw_gb_s"),
    ({"time_us_by_rank": None}, r"phases\[0\].data.rows\[0\].time_us_by_rank"),
])  # fmt: skip
def test_damaged_report_in_a_passport_is_refused_naming_the_field(
    tmp_path: Path, change: dict[str, Any], where: str
) -> None:
    broken = evidence.report(collectives({**row(MIB), **change}))
    with pytest.raises(
        IntegrityError, match=f"the smoke report of the prefix is damaged: at {where}"
    ):
        page_of(tmp_path, passport(broken))


def test_a_passport_is_also_read_as_json_prints_it(tmp_path: Path) -> None:
    printed = {**passport(), "schema": "provision.passport-show/1", "outdated": ""}
    assert page_of(tmp_path, printed).environments == page_of(tmp_path, passport()).environments


def test_missing_file_and_folder_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="does not exist"):
        report.load(tmp_path / "nothing.json")
    with pytest.raises(InvalidSpec, match="is a folder"):
        report.load(tmp_path)


def test_passport_without_a_smoke_test_has_no_verdict(tmp_path: Path) -> None:
    page = page_of(tmp_path, passport())
    assert page.verdict == "unknown"
    assert (page.measurements, page.curves, page.ranks) == ((), (), ())
    assert page.missing == (f"{tmp_path / '0' / 'p.json'}: no smoke test was run.",)
    (environment,) = page.environments
    assert environment.name == "torch2.3-cuda12.1-py311"
    assert {choice.what for choice in environment.choices} >= {"torch", "cuda", "nccl", "driver"}
    assert all(pin.reason for pin in environment.pins)
    assert "not portable" in environment.products["lock"]


def test_a_passport_with_a_report_of_another_schema_is_refused(tmp_path: Path) -> None:
    old = {"schema": 1, "kind": "smoke", "verdict": "pass"}
    with pytest.raises(IntegrityError, match="of schema 1, and this provision reads schema 2"):
        page_of(tmp_path, passport(old))


def test_report_without_a_passport_has_no_environment(tmp_path: Path) -> None:
    page = page_of(tmp_path, evidence.report(phase()))
    assert page.environments == ()
    assert any("a smoke report alone" in line for line in page.missing)
    assert any("no bandwidths" in line for line in page.missing)


def test_findings_verdicts_and_skipped_phases_are_listed(tmp_path: Path) -> None:
    smoke_report = evidence.report(
        phase(), phase("ddp", verdict="fail", findings=[finding()]), skipped=["checkpoint"]
    )
    page = page_of(tmp_path, passport(smoke_report))
    (run,) = page.measurements
    assert page.verdict == run.verdict == "fail"
    assert [(phase.name, phase.verdict) for phase in run.phases] == [
        ("barrier", "pass"),
        ("ddp", "fail"),
        ("checkpoint", "skipped"),
    ]
    assert run.phases[1].findings[0].ranks == [1]
    assert run.setting["ranks"] == "2, gloo on cpu"
    assert run.facts["torch.devices[0].name"] == "H100"
    assert run.facts["torch.arch_list"] == ("sm_80", "sm_90")


def test_shared_sample_is_loaded(tmp_path: Path) -> None:
    page = page_of(tmp_path, passport(json.loads(SAMPLE.read_text())))
    (table,) = page.ranks
    groups = {column.group for column in table.columns}
    assert (page.verdict, groups) == ("warn", {"barrier", "compute", "all_reduce of float32"})


def test_contradicted_verdict_is_reported(tmp_path: Path) -> None:
    document = passport(evidence.report(phase()))
    document["smoke"]["prefix"]["verdict"] = "unknown"
    (run,) = page_of(tmp_path, document).measurements
    assert run.verdict == "unknown"
    assert "the verdict is unknown" in run.notes[0]


def test_rehearsals_and_single_ranks_are_marked(tmp_path: Path) -> None:
    (rehearsal,) = page_of(tmp_path, passport(evidence.report(phase()))).measurements
    assert any("speed of GPUs" in note for note in rehearsal.notes)
    (measurement,) = page_of(
        tmp_path, passport(evidence.report(phase(), world_size=1, device="cuda:0", backend="nccl"))
    ).measurements
    assert any("one rank" in note for note in measurement.notes)


def test_curves_by_collective_and_dtype_in_size_order(tmp_path: Path) -> None:
    rows = [row(MIB), row(8), row(MIB, dtype="bfloat16"), row(MIB, collective="broadcast")]
    page = page_of(
        tmp_path,
        passport(
            evidence.report(collectives(*rows, refused={"all_reduce float16": "not offered"}))
        ),
    )
    assert [
        (curve.collective, curve.dtype, [point.bytes for point in curve.points])
        for curve in page.curves
    ] == [
        ("all_reduce", "float32", [8, MIB]),
        ("all_reduce", "bfloat16", [MIB]),
        ("broadcast", "float32", [MIB]),
    ]
    assert "Not measured: all_reduce float16: not offered." in page.measurements[0].notes


def test_what_bandwidths_are_compared_with_is_said(tmp_path: Path) -> None:
    reference = {"name": "8 x H200", "source": "a page", "condition": "NVLS", "from_bytes": MIB}
    data = collectives(row(MIB, busbw=1.0, expected_gb_s=40.0), expected={"all_reduce": reference})
    (curve,) = page_of(tmp_path, passport(evidence.report(data))).curves
    assert curve.points[0].expected_gb_s == 40.0
    assert curve.notes == ("Expected: 8 x H200 (NVLS; a page).",)


def ranks(count: int, slow: int, **more: Any) -> dict[str, Any]:
    times = [100.0] * count
    times[slow] = 160.0
    waits = [50.0] * count
    waits[slow] = 5.0
    rates = [{"rank": rank, "copy": 10.0} for rank in range(count)]
    return evidence.report(
        phase(data={"p50_us_by_rank": waits}),
        collectives(
            row(MIB, time_us_by_rank=times), row(MIB, collective="broadcast", time_us_by_rank=times)
        ),
        phase("compute", data={"units": {"copy": "GB/s"}, "ranks": rates}),
        world_size=count,
        **more,
    )


def test_ranks_are_compared_with_the_median(tmp_path: Path) -> None:
    (table,) = page_of(tmp_path, passport(ranks(4, slow=2))).ranks
    assert [
        (column.group, column.title, column.unit, column.median) for column in table.columns
    ] == [
        ("barrier", "wait", "us", 50.0),
        ("compute", "copy", "GB/s", 10.0),
        ("all_reduce of float32", "1 MiB", "us", 100.0),
    ]
    assert table.rows[2] == (5.0, 10.0, 160.0)
    cells = list(zip(table.rows[2], table.columns))
    assert [measures.factor(*cell) for cell in cells] == [10.0, 1.0, 1.6]
    assert [measures.shade(*cell) for cell in cells] == ["l4", "", "h4"]
    assert table.hidden == 0
    assert table.hosts == ("", "", "", "")


def test_ranks_of_several_hosts_are_distinguished_and_gpus_counted(tmp_path: Path) -> None:
    smoke_report = ranks(4, slow=2)
    rank_facts = [
        {"rank": rank, "host": f"node{rank // 2}", "gpu_name": "H100"} for rank in range(4)
    ]
    smoke_report["phases"].insert(0, phase("facts", data={"ranks": rank_facts}))
    page = page_of(tmp_path, passport(smoke_report))
    assert page.ranks[0].hosts == ("node0", "node0", "node1", "node1")
    assert page.measurements[0].setting["GPUs"] == "4 x H100"


def test_only_outliers_of_many_ranks_are_shown(
    tmp_path: Path,
) -> None:
    (table,) = page_of(tmp_path, passport(ranks(500, slow=499))).ranks
    assert len(table.ranks) == measures.MAX_RANKS
    assert table.ranks[-1] == 499
    assert table.hidden == 500 - measures.MAX_RANKS


def test_single_rank_has_no_rank_table(tmp_path: Path) -> None:
    single_rank = evidence.report(collectives(row(MIB, busbw=None, ranks=1)), world_size=1)
    page = page_of(tmp_path, passport(single_rank))
    assert page.ranks == ()
    assert page.curves[0].points[0].busbw_gb_s is None


def test_one_lock_on_two_hosts_is_one_environment_with_two_runs(tmp_path: Path) -> None:
    other = evidence.report(
        phase(verdict="warn", findings=[finding(verdict="warn")]), hosts=["node2"]
    )
    other["facts"] = {**other["facts"], "host": "node2", "driver": "550.54"}
    page = page_of(tmp_path, passport(evidence.report(phase())), passport(other, host="node2"))
    (environment,) = page.environments
    assert len(environment.files) == 2
    assert page.title == "torch2.3-cuda12.1-py311 on 2 hosts"
    labels = [run.label for run in page.measurements]
    assert "prefix on node1" in labels[0] and "prefix on node2" in labels[1]
    assert page.verdict == "warn"
