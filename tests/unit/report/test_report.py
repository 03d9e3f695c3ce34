"""The contents of a report page: read strictly, nothing invented, every run with its own label."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provision import report
from provision.core.errors import IntegrityError, InvalidSpec
from provision.report.page import products
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
    ("[]", "not a record of provision"),
    ('{"name": "lab"}', "not a record of provision"),
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
    printed = {**passport(), "schema": "provision.passport-show/1"}
    assert page_of(tmp_path, printed).files == page_of(tmp_path, passport()).files


def test_missing_file_and_folder_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="No such file"):
        report.load(tmp_path / "nothing.json")
    with pytest.raises(InvalidSpec, match="Is a directory"):
        report.load(tmp_path)


def test_passport_without_a_smoke_test_has_no_verdict(tmp_path: Path) -> None:
    page = page_of(tmp_path, passport())
    assert page.verdict == "unknown"
    assert page.missing == (f"{tmp_path / '0' / 'p.json'}: no smoke test was run.",)
    (file,) = page.files
    assert file.passport and "not portable" in products(file.passport)["lock"]


def test_a_passport_with_a_report_of_another_schema_is_refused(tmp_path: Path) -> None:
    old = {"schema": 1, "kind": "smoke", "verdict": "pass"}
    with pytest.raises(IntegrityError, match="of schema 1, and this provision reads schema 2"):
        page_of(tmp_path, passport(old))


def test_report_without_a_passport_has_no_environment(tmp_path: Path) -> None:
    page = page_of(tmp_path, evidence.report(phase()))
    assert report.template_values(page)["environments"] == []
    assert any("a smoke report alone" in line for line in page.missing)


def notes_of(tmp_path: Path, document: dict[str, Any]) -> list[str]:
    values: Any = report.template_values(page_of(tmp_path, document))
    [(_, _, notes)] = values["runs"]
    return list(notes)


def test_shared_sample_is_loaded(tmp_path: Path) -> None:
    page = page_of(tmp_path, passport(json.loads(SAMPLE.read_text())))
    assert (page.verdict, page.missing) == ("warn", ())


def test_contradicted_verdict_is_reported(tmp_path: Path) -> None:
    document = passport(evidence.report(phase()))
    document["smoke"]["prefix"]["verdict"] = "unknown"
    assert page_of(tmp_path, document).verdict == "unknown"
    assert "the verdict is unknown" in notes_of(tmp_path, document)[0]


def test_rehearsals_and_single_ranks_are_marked(tmp_path: Path) -> None:
    rehearsal = notes_of(tmp_path, passport(evidence.report(phase())))
    assert any("speed of GPUs" in note for note in rehearsal)
    single_rank = evidence.report(phase(), world_size=1, device="cuda:0", backend="nccl")
    (note,) = notes_of(tmp_path, passport(single_rank))
    assert "one rank" in note


def test_curves_by_collective_and_dtype_in_size_order(tmp_path: Path) -> None:
    rows = [row(MIB), row(8), row(MIB, dtype="bfloat16"), row(MIB, collective="broadcast")]
    data = collectives(*rows)
    document = passport(evidence.report(data))
    values: Any = report.template_values(page_of(tmp_path, document))
    assert [
        (collective, label.split(", ")[-1], [row["bytes"] for row in rows])
        for collective, series in values["curves"].items()
        for label, rows in series.items()
    ] == [
        ("all_reduce", "float32", [8, MIB]),
        ("all_reduce", "bfloat16", [MIB]),
        ("broadcast", "float32", [MIB]),
    ]
    assert notes_of(tmp_path, document)[1:] == []


def test_one_lock_on_two_hosts_is_one_environment_with_two_runs(tmp_path: Path) -> None:
    other = evidence.report(
        phase(verdict="warn", findings=[finding(verdict="warn")]), hosts=["node2"]
    )
    page = page_of(tmp_path, passport(evidence.report(phase())), passport(other, host="node2"))
    values: Any = report.template_values(page)
    (files,) = values["environments"]
    assert len(files) == 2
    assert page.title == "torch2.3-cuda12.1-py311 on 2 hosts"
    labels = [label for label, _, _ in values["runs"]]
    assert "prefix on node1" in labels[0] and "prefix on node2" in labels[1]
    assert page.verdict == "warn"
