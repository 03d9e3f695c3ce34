"""Labels several environments or runs of the test, and finds their differences. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.core.package_names import requirement_name
from provision.report.model import EnvironmentRecord, Fact, Measurement, ReportDifference

ABSENT = "-"
# Facts that differ in every run anyway; the page shows them with each run.
RUN_FACTS = ("host", "hosts", "started", "took", "limits.shm.free_bytes", "limits.shm.device")


def labels(runs: Sequence[tuple[str, str, str, str]]) -> list[str]:
    """The shortest labels that distinguish runs. A run is a name, host, location and file.

    A label has only the parts in which the runs differ, and the file only if they differ in
    nothing else. Equal labels are numbered.
    """
    if not runs:
        return []
    *columns, files = zip(*runs)
    parts = [column for column in columns if len(set(column)) > 1]
    if len(set(zip(*parts))) < len(runs) and len(set(files)) > 1:
        parts.append(tuple(distinct_parts(files)))
    texts = [", ".join(texts) for texts in zip(*parts)] or [host for _, host, _, _ in runs]
    result = []
    for position, text in enumerate(texts, start=1):
        number = f" ({texts[:position].count(text)})" if texts.count(text) > 1 else ""
        result.append(text + number)
    return result


def distinct_parts(files: Sequence[str]) -> list[str]:
    """Paths without the parts at their beginning and end that all have in common."""
    paths = [Path(file).parts for file in files]
    if len(set(paths)) < 2:
        return list(files)
    start = _common_length(paths)
    end = _common_length([path[start:][::-1] for path in paths])
    return [str(Path(*path[start : len(path) - end])) for path in paths]


def _common_length(paths: Sequence[Sequence[str]]) -> int:
    """How many parts at the beginning all paths have in common."""
    length = 0
    for parts in zip(*paths):
        if len(set(parts)) > 1:
            break
        length += 1
    return length


def compare_measurements(
    measurements: Sequence[Measurement],
) -> tuple[tuple[ReportDifference, ...], int]:
    """The facts in which runs differ, and how many facts they have in common."""
    if len(measurements) < 2:
        return (), 0
    tables: list[dict[str, Fact]] = []
    for measurement in measurements:
        table: dict[str, Fact] = {**measurement.setting, "verdict": measurement.verdict}
        for phase in measurement.phases:
            table[f"verdict of {phase.name}"] = phase.verdict
        table.update(_relative_to_prefix(measurement.facts))
        tables.append(table)

    differences, same = [], 0
    for key in dict.fromkeys(key for table in tables for key in table):
        if key in RUN_FACTS:
            continue
        facts = [table.get(key, ABSENT) for table in tables]
        if len(set(facts)) == 1:
            same += 1
        else:
            texts = _differing_texts(facts)
            differences.append(ReportDifference(kind="measurement", what=key, values=tuple(texts)))
    return tuple(differences), same


def _relative_to_prefix(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """Facts with PREFIX in place of the environment's own path: two locations are one
    difference, not one in every path.
    """
    prefix = facts.get("python.prefix")
    if not isinstance(prefix, str) or prefix in ("", "/", "none"):
        return dict(facts)
    result: dict[str, Fact] = {}
    for key, fact in facts.items():
        if isinstance(fact, str):
            result[key] = fact.replace(f"{prefix}/", "PREFIX/")
        else:
            result[key] = tuple(text.replace(f"{prefix}/", "PREFIX/") for text in fact)
    return result


def _differing_texts(facts: Sequence[Fact]) -> list[str]:
    """Facts as text: of a list only the items that some list lacks, and how many are in all."""
    lists = [set(fact) for fact in facts if not isinstance(fact, str)]
    common = set.intersection(*lists) if len(lists) == len(facts) else set()
    texts = []
    for fact in facts:
        if isinstance(fact, str):
            texts.append(fact)
            continue
        text = format_value([item for item in fact if item not in common])
        texts.append(f"{text}; {len(common)} in common" if common else text)
    return texts


def compare_environments(
    environments: Sequence[EnvironmentRecord],
) -> tuple[ReportDifference, ...]:
    """The choices, pins and products in which environments differ."""
    if len(environments) < 2:
        return ()
    # Passports of earlier versions lack the locked versions: that is no difference.
    with_locked = all(any(pin.locked for pin in item.pins) for item in environments)
    tables = []
    for environment in environments:
        table = {choice.what: choice.value for choice in environment.choices}
        table.update(environment.products)
        for pin in environment.pins:
            # By package, so that two versions of a package are in one row.
            locked = f", locked {pin.locked}" if with_locked and pin.locked else ""
            table[f"pin of {requirement_name(pin.value)} ({pin.what})"] = pin.value + locked
        tables.append(table)

    differences = []
    for key in dict.fromkeys(key for table in tables for key in table):
        values = tuple(table.get(key, ABSENT) for table in tables)
        if len(set(values)) > 1:
            differences.append(ReportDifference(kind="environment", what=key, values=values))
    return tuple(differences)


def flatten(value: Any, path: str = "") -> dict[str, Fact]:
    """Every single fact of nested facts, by its path: `torch.nccl.loaded`."""
    if isinstance(value, Mapping) and value:
        facts = {}
        for key, item in value.items():
            facts.update(flatten(item, f"{path}.{key}" if path else str(key)))
        return facts
    if isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        facts = {}
        for index, item in enumerate(value):
            facts.update(flatten(item, f"{path}[{index}]"))
        return facts
    if isinstance(value, list):
        return {path: tuple(format_value(item) for item in value)}
    if isinstance(value, Mapping):
        return {path: "none"}
    return {path: format_value(value)}


def format_value(value: Any) -> str:
    """A value of a JSON document as people write it."""
    if isinstance(value, list):
        return ", ".join(format_value(item) for item in value) or "none"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
