"""What the smoke test writes and the host reads fits the schemas; neither reads anything else."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from provision.core.schema import SCHEMAS, schema_error
from provision_runtime.report import model
from tests import evidence
from tests.paths import DATA

SAMPLE = DATA / "smoke-report.json"


def validator(kind: str) -> Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{kind}.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


REPORT, PASSPORT = validator("smoke-report"), validator("passport")


def test_sample_is_valid() -> None:
    REPORT.validate(json.loads(SAMPLE.read_text()))


def test_own_passport_is_valid() -> None:
    PASSPORT.validate(evidence.passport(json.loads(SAMPLE.read_text())))


@pytest.mark.parametrize("key", ["name", "verdict", "duration_s", "message", "findings"])
def test_a_passport_whose_smoke_report_lacks_what_is_printed_is_refused(key: str) -> None:
    content = evidence.passport(copy.deepcopy(WHOLE))
    PASSPORT.validate(content)
    (smoke,) = content["smoke"].values()
    del smoke["report"]["phases"][0][key]
    error = schema_error(content, "passport")
    assert error is not None and "report.phases[0]" in error and f'"{key}"' in error


def test_a_passport_may_hold_a_smoke_report_of_another_schema() -> None:
    PASSPORT.validate(evidence.passport({"schema": 1, "kind": "smoke", "verdict": "pass"}))


def test_schema_has_the_fields_of_the_code() -> None:
    schema = json.loads((SCHEMAS / "smoke-report.schema.json").read_text())
    properties = schema["properties"]
    assert (properties["schema"]["const"], properties["kind"]["const"]) == (2, model.KIND)
    assert set(schema["$defs"]["verdict"]["enum"]) == set(model.WORST_FIRST)
    for kind, described in (
        (model.ReportedFinding, schema["$defs"]["finding"]["properties"]),
        (model.ReportedPhase, schema["$defs"]["phase"]["properties"]),
        (model.Report, properties),
    ):
        names = {field.name for field in dataclasses.fields(kind)}
        assert set(described) - {"schema", "kind", "verdict"} == names - {"verdict"}


def key_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every key that the contract fixes: not what lies in facts and data."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield (*path, key)
            if key not in ("facts", "data"):
                yield from key_paths(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value[:1]):
            yield from key_paths(item, (*path, index))


WHOLE = evidence.report(evidence.phase(verdict="fail", findings=[evidence.finding()]))


@pytest.mark.parametrize("path", list(key_paths(WHOLE)), ids=lambda path: ".".join(map(str, path)))
def test_missing_key_is_refused_by_schema_and_code(path: tuple[Any, ...]) -> None:
    REPORT.validate(WHOLE)
    model.loads(json.dumps(WHOLE))
    broken = copy.deepcopy(WHOLE)
    holder: Any = broken
    for step in path[:-1]:
        holder = holder[step]
    del holder[path[-1]]
    assert not REPORT.is_valid(broken)
    with pytest.raises(model.ReportUnreadable):
        model.loads(json.dumps(broken))


FINDING = ("phases", 0, "findings", 0)


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ((), {"schema": 1}),
        ((), {"schema": "2"}),
        ((), {"kind": "stuck"}),
        ((), {"verdict": "fine"}),
        ((), {"duration_s": -1}),
        ((), {"world_size": 0}),
        ((), {"world_size": 1.5}),
        ((), {"hosts": []}),
        ((), {"hosts": "node1"}),
        ((), {"started_at": "yesterday"}),
        ((), {"skipped": None}),
        ((), {"phases": {}}),
        ((), {"more": 1}),
        (FINDING, {"id": "Wrong Value"}),
        (FINDING, {"verdict": "pass"}),
        (FINDING, {"ranks": [-1]}),
        (FINDING, {"ranks": 1}),
        (FINDING, {"more": 1}),
        (FINDING, {"advice": None}),
    ],
)
def test_invalid_values_are_refused(path: tuple[Any, ...], change: dict[str, Any]) -> None:
    document: Any = copy.deepcopy(WHOLE)
    holder = document
    for step in path:
        holder = holder[step]
    holder.update(change)
    assert not REPORT.is_valid(document)
