"""Evidence -> the page, as plain values. Pure.

The page invents nothing: `missing` lists what the evidence lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.core.documents import Passport, ReasonRow
from provision.report import measures
from provision.report.load import EvidenceFile, SmokeRun
from provision.report.measures import MeasuredCurve, RankTable
from provision.report.model import (
    EnvironmentRecord,
    Fact,
    Measurement,
    NodesTest,
    Page,
    PhaseResult,
    ReasonedChoice,
    TestedNode,
)
from provision_runtime.report.model import Report

LEFT_OUT = "left out when the test was started"
WORST_FIRST = ("fail", "unknown", "warn", "pass")


def build_page(evidence: Sequence[EvidenceFile]) -> Page:
    """The page of some files, in their order."""
    measurements: list[Measurement] = []
    curves: list[MeasuredCurve] = []
    tables: list[RankTable] = []
    for file in evidence:
        for run in file.runs:
            label = f"{_name(file)} in the {run.location} on {run.host}"
            if len(evidence) > 1:
                label += f" ({file.source})"
            curves += measures.curves(len(measurements), run.report)
            table = measures.rank_table(len(measurements), run.report)
            if table is not None:
                tables.append(table)
            measurements.append(_measurement(label, file, run))
    verdicts = {measurement.verdict for measurement in measurements}
    if any(file.outdated for file in evidence):
        verdicts.add("unknown")
    worst = next((verdict for verdict in WORST_FIRST if verdict in verdicts), "unknown")
    return Page(
        title=_title(evidence, measurements),
        verdict=worst,
        environments=_environments(evidence),
        measurements=tuple(measurements),
        curves=tuple(curves),
        ranks=tuple(tables),
        node_tests=tuple(_node_tests(evidence)),
        missing=tuple(_missing(evidence, measurements, curves, tables)),
    )


def _node_tests(evidence: Sequence[EvidenceFile]) -> Iterator[NodesTest]:
    for file in evidence:
        test = file.passport.get("smoke_nodes") if file.passport else None
        if test is None:
            continue
        nodes = []
        for row in test["nodes"]:
            remark = ": ".join(filter(None, [", ".join(row["findings"]), row["message"]]))
            nodes.append(
                TestedNode(node=row["node"], host=row["host"], state=row["state"], remark=remark)
            )
        yield NodesTest(
            environment=_name(file),
            on=test["on"],
            started_at=test["started_at"],
            verdict=test["verdict"],
            nodes=tuple(nodes),
        )


def _name(evidence: EvidenceFile) -> str:
    return str(evidence.passport["name"]) if evidence.passport else "smoke test"


def _title(evidence: Sequence[EvidenceFile], measurements: Sequence[Measurement]) -> str:
    names = list(dict.fromkeys(_name(file) for file in evidence))
    hosts = {measurement.host for measurement in measurements}
    if len(names) > 1:
        return f"{len(names)} environments"
    if len(hosts) > 1:
        return f"{names[0]} on {len(hosts)} hosts"
    return names[0]


def _environments(evidence: Sequence[EvidenceFile]) -> tuple[EnvironmentRecord, ...]:
    """The environments. Passports of the same name, lock and request are one environment."""
    groups: dict[tuple[str, str, str], list[EvidenceFile]] = {}
    for file in evidence:
        passport = file.passport
        if passport is not None:
            key = (passport["name"], passport["lock"]["sha256"], repr(passport["request"]))
            groups.setdefault(key, []).append(file)
    return tuple(_environment(files) for files in groups.values())


def _environment(files: Sequence[EvidenceFile]) -> EnvironmentRecord:
    """files: with passports."""
    passports = [file.passport for file in files if file.passport is not None]
    newest = max(passports, key=lambda passport: str(passport["written_at"]))
    pins = []
    for pin in newest["pins"]:
        locked = pin.get("locked") or ""
        choice = ReasonedChoice(
            pin["manager"], pin["requirement"], pin["reason"], pin["source"], locked
        )
        pins.append(choice)
    return EnvironmentRecord(
        name=newest["name"],
        files=tuple(file.source for file in files),
        made_by=newest["made_by"],
        written_at=newest["written_at"],
        request={key: format_value(value) for key, value in newest["request"].items()},
        choices=tuple(_choice(choice) for choice in newest["reasons"]),
        warnings=tuple(_choice(choice) for choice in newest.get("warnings", [])),
        pins=tuple(pins),
        products=products(newest),
        outdated=next((file.outdated for file in files if file.outdated), ""),
    )


def _choice(choice: ReasonRow) -> ReasonedChoice:
    value = format_value(choice["value"])
    return ReasonedChoice(choice["what"], value, choice["reason"], choice["source"])


def products(passport: Passport) -> dict[str, str]:
    """What was made, in words."""
    lock, image, kernel = passport["lock"], passport["image"], passport["kernel"]
    runtime = passport.get("runtime")
    made = {
        "lock": f"{lock['packages']} packages, sha256 {lock['sha256']}",
        "prefix": passport["prefix"]["path"],
        "image": "none was made",
        "kernel": kernel["name"] if kernel else "none was registered",
    }
    if not lock["portable"]:
        made["lock"] += "; not portable: its Python is that of the machine that made it"
    if runtime:
        made["runtime"] = f"{runtime['name']} {runtime['version']} in the prefix"
    if image:
        made["image"] = f"{image['reference']}, {image['manifest_digest']}, on {image['base']}"
    return made


def _measurement(label: str, evidence: EvidenceFile, run: SmokeRun) -> Measurement:
    report = run.report
    return Measurement(
        label=label,
        host=run.host,
        verdict=run.verdict,
        setting=_setting(report),
        notes=tuple(_notes(evidence, run)),
        phases=tuple(_phases(report)),
        facts=flatten(report.facts),
    )


def _setting(report: Report) -> dict[str, str]:
    device = report.device.partition(":")[0]
    setting = {
        "started": report.started_at,
        "took": f"{report.duration_s:.1f} s",
        "ranks": f"{report.world_size}, {report.backend} on {device}",
        "hosts": ", ".join(report.hosts),
        "profile": report.profile,
    }
    gpus = measures.gpus(report)
    if gpus:
        setting["GPUs"] = gpus
    return setting


def _notes(evidence: EvidenceFile, run: SmokeRun) -> list[str]:
    report = run.report
    notes = []
    if evidence.outdated:
        notes.append(f"It does not count for the environment as it is now: {evidence.outdated}.")
    if run.verdict != report.verdict:
        notes.append(
            f"The report says {report.verdict}, but the test did not end that way: "
            f"the verdict is {run.verdict}."
        )
    if report.device == "cpu":
        notes.append(
            "It ran on the CPU over Gloo: that proves correctness, "
            "but not the speed of GPUs and their links."
        )
    if report.world_size == 1:
        notes.append("There was one rank: what several ranks do together was not tested.")
    refused = measures.phase_data(report, "collectives").get("refused", {})
    notes += [f"Not measured: {name}: {reason}." for name, reason in refused.items()]
    return notes


def _phases(report: Report) -> list[PhaseResult]:
    phases = []
    for phase in report.phases:
        findings = tuple(phase.findings)
        result = PhaseResult(phase.name, phase.verdict, phase.duration_s, phase.message, findings)
        phases.append(result)
    for name in report.skipped:
        phases.append(PhaseResult(name, "skipped", 0.0, LEFT_OUT))
    return phases


def _missing(
    evidence: Sequence[EvidenceFile],
    measurements: Sequence[Measurement],
    curves: Sequence[MeasuredCurve],
    tables: Sequence[RankTable],
) -> list[str]:
    """What the evidence lacks, and why."""
    missing = [f"{file.source}: no smoke test was run." for file in evidence if not file.runs]
    for file in evidence:
        if file.outdated:
            missing.append(
                f"{_name(file)} as it is now: {file.outdated}. `provision build {_name(file)}` "
                "writes a new one."
            )
        if file.passport is None:
            missing.append(
                f"{file.source}: a smoke report alone; "
                "it does not say how its environment was made."
            )
    has_phases = any(measurement.phases for measurement in measurements)
    if has_phases and not curves:
        missing.append("No collective was measured, so there are no bandwidths.")
    if has_phases and not tables:
        missing.append("Nothing was measured rank by rank, so there is no table of ranks.")
    return missing


def flatten(value: Any, path: str = "") -> dict[str, Fact]:
    """Every single fact of nested facts, by its path: `torch.nccl.loaded`."""
    children: dict[str, Any] = {}
    if isinstance(value, Mapping):
        children = {f"{path}.{key}" if path else key: item for key, item in value.items()}
    elif isinstance(value, list):
        if not any(isinstance(item, (Mapping, list)) for item in value):
            return {path: tuple(map(format_value, value))}
        children = {f"{path}[{index}]": item for index, item in enumerate(value)}
    facts: dict[str, Fact] = {} if children else {path: format_value(value)}
    for key, item in children.items():
        facts |= flatten(item, key)
    return facts


def format_value(value: Any) -> str:
    """A value of a JSON document as people write it."""
    if isinstance(value, list):
        return ", ".join(map(format_value, value)) or "none"
    if value is None or value == {}:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
