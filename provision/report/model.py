"""Evidence -> what the page says, as plain values: `--json` prints them, the template words them. Pure, and nothing is invented:
a part that the evidence does not hold is named in `missing`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.report import comparison, measures
from provision.report.comparison import Difference, Fact
from provision.report.evidence import Evidence, Measured
from provision.report.measures import Curve, RankTable


@dataclass(frozen=True, kw_only=True)
class Told:
    """A choice, pin or warning, why it is so and where that is known from."""

    what: str
    value: str
    reason: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Pin(Told):
    """locked: the version that came of it."""

    locked: str


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What one passport says of an environment. Passports of the same lock are one environment, named by all their files."""

    name: str
    files: tuple[str, ...]
    made_by: str
    written_at: str
    request: dict[str, str]
    choices: tuple[Told, ...]
    warnings: tuple[Told, ...]
    pins: tuple[Pin, ...]
    products: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Finding:
    id: str
    verdict: str
    ranks: tuple[int, ...]
    message: str
    advice: str


@dataclass(frozen=True, kw_only=True)
class Phase:
    """verdict: also `skipped`, for a phase that the user left out."""

    name: str
    verdict: str
    duration_s: float
    message: str
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run of the smoke test."""

    label: str
    environment: str
    place: str
    host: str
    verdict: str
    about: dict[str, str]  # when, on what, how much
    notes: tuple[str, ...]
    phases: tuple[Phase, ...]
    facts: dict[str, Fact]  # all that the environment said about itself


@dataclass(frozen=True, kw_only=True)
class Page:
    title: str
    verdict: str
    environments: tuple[Environment, ...]
    measurements: tuple[Measurement, ...]
    curves: tuple[Curve, ...]
    ranks: tuple[RankTable, ...]
    differences: tuple[Difference, ...]
    same: int  # facts that all measurements have in common
    missing: tuple[str, ...]


NOT_RUN = "left out when the test was started"
WORST_FIRST = ("fail", "unknown", "warn", "pass")


def page(evidence: Sequence[Evidence]) -> Page:
    """All that the files say, in the order in which they were named."""
    runs = [(one, measured) for one in evidence for measured in one.measured]
    labels = comparison.labels(
        [(_name(one), measured.host, measured.place, one.source) for one, measured in runs]
    )
    measurements = tuple(
        _measurement(label, one, measured) for label, (one, measured) in zip(labels, runs)
    )
    reports = [
        (place, measured.report)
        for place, (_, measured) in enumerate(runs)
        if measured.report is not None
    ]
    curves = tuple(curve for place, report in reports for curve in measures.curves(place, report))
    tables = [measures.rank_table(place, report) for place, report in reports]
    environments = _environments(evidence)
    differences, same = comparison.differences(measurements)
    return Page(
        title=_title(evidence, measurements),
        verdict=next(
            (
                verdict
                for verdict in WORST_FIRST
                if any(one.verdict == verdict for one in measurements)
            ),
            "unknown",
        ),
        environments=environments,
        measurements=measurements,
        curves=curves,
        ranks=tuple(table for table in tables if table is not None),
        differences=(*comparison.environments(environments), *differences),
        same=same,
        missing=tuple(_missing(evidence, measurements, curves, tables)),
    )


def _name(evidence: Evidence) -> str:
    return str(evidence.passport["name"]) if evidence.passport else "smoke test"


def _title(evidence: Sequence[Evidence], measurements: Sequence[Measurement]) -> str:
    names = list(dict.fromkeys(_name(one) for one in evidence))
    hosts = {one.host for one in measurements}
    if len(names) > 1:
        return f"{len(names)} environments compared"
    return f"{names[0]} on {len(hosts)} hosts" if len(hosts) > 1 else names[0]


def _environments(evidence: Sequence[Evidence]) -> tuple[Environment, ...]:
    """Passports that differ only in where they lie and what was measured are one environment."""
    found: dict[tuple[Any, ...], list[Evidence]] = {}
    for one in evidence:
        if one.passport is not None:
            key = (
                one.passport["name"],
                one.passport["lock"]["sha256"],
                repr(one.passport["request"]),
            )
            found.setdefault(key, []).append(one)
    return tuple(_environment(same) for same in found.values())


def _environment(same: Sequence[Evidence]) -> Environment:
    newest = max(
        (one.passport for one in same if one.passport),
        key=lambda passport: str(passport["written_at"]),
    )
    return Environment(
        name=newest["name"],
        files=tuple(one.source for one in same),
        made_by=newest["made_by"],
        written_at=newest["written_at"],
        request={key: comparison.in_words(value) for key, value in newest["request"].items()},
        choices=tuple(_told(choice) for choice in newest["reasons"]),
        warnings=tuple(_told(choice) for choice in newest.get("warnings", [])),
        pins=tuple(
            Pin(
                what=pin["manager"],
                value=pin["requirement"],
                reason=pin["reason"],
                source=pin["source"],
                locked=pin.get("locked") or "",
            )
            for pin in newest["pins"]
        ),
        products=_products(newest),
    )


def _told(choice: Mapping[str, Any]) -> Told:
    return Told(
        what=choice["what"],
        value=comparison.in_words(choice["value"]),
        reason=choice["reason"],
        source=choice["source"],
    )


def _products(passport: Mapping[str, Any]) -> dict[str, str]:
    lock, image, kernel = passport["lock"], passport["image"], passport["kernel"]
    portable = (
        ""
        if lock["portable"]
        else "; not portable: its Python is the one of the machine that made it"
    )
    return {
        "lock": f"{lock['packages']} packages, sha256 {lock['sha256']}{portable}",
        "prefix": passport["prefix"]["path"],
        "image": f"{image['reference']}, {image['manifest_digest']}, on {image['base']}"
        if image
        else "none was made",
        "kernel": kernel["name"] if kernel else "none was registered",
    }


def _measurement(label: str, evidence: Evidence, measured: Measured) -> Measurement:
    report = measured.report
    return Measurement(
        label=label,
        environment=_name(evidence),
        place=measured.place,
        host=measured.host,
        verdict=measured.verdict,
        about=_about(report) if report else {},
        notes=tuple(_notes(measured)),
        phases=tuple(_phases(report)) if report else (),
        facts=dict(comparison.leaves(report["facts"])) if report else {},
    )


def _about(report: Mapping[str, Any]) -> dict[str, str]:
    return {
        "started": report["started_at"],
        "took": f"{report['duration_s']:.1f} s",
        "ranks": f"{report['world_size']}, {report['backend']} on {report['device'].partition(':')[0]}",
        "hosts": ", ".join(report["hosts"]),
        "profile": report["profile"],
    } | ({"GPUs": gpus} if (gpus := measures.gpus(report)) else {})


def _notes(measured: Measured) -> list[str]:
    report = measured.report
    if report is None:
        return [f"Its phases cannot be shown: {measured.unread}."]
    found = []
    if measured.verdict != report["verdict"]:
        found.append(
            f"The report says {report['verdict']}, but the test did not end as it says: the verdict is {measured.verdict}."
        )
    if report["device"] == "cpu":
        found.append(
            "It ran on the CPU over Gloo: correctness is proven, the speed of GPUs and their links is not."
        )
    if report["world_size"] == 1:
        found.append("There was one rank: what several ranks do together was not tested.")
    found += [f"Not measured: {told}." for told in measures.not_measured(report)]
    return found


def _phases(report: Mapping[str, Any]) -> list[Phase]:
    ran = [
        Phase(
            name=phase["name"],
            verdict=phase["verdict"],
            duration_s=phase["duration_s"],
            message=phase["message"],
            findings=tuple(
                Finding(**{**finding, "ranks": tuple(finding["ranks"])})
                for finding in phase["findings"]
            ),
        )
        for phase in report["phases"]
    ]
    left_out = [
        Phase(name=name, verdict="skipped", duration_s=0.0, message=NOT_RUN)
        for name in report["skipped"]
    ]
    return ran + left_out


def _missing(
    evidence: Sequence[Evidence],
    measurements: Sequence[Measurement],
    curves: Sequence[Curve],
    tables: Sequence[RankTable | None],
) -> list[str]:
    """What a reader would look for and not find, and why."""
    said = [f"{one.source}: no smoke test was run." for one in evidence if not one.measured]
    alone = "a smoke report alone; how its environment came about is not known here."
    said += [f"{one.source}: {alone}" for one in evidence if one.passport is None]
    readable = any(one.phases for one in measurements)
    if readable and not curves:
        said.append("No collective was measured, so there are no curves.")
    if readable and not any(tables):
        said.append("Nothing was measured rank by rank, so there is no table of ranks.")
    return said
