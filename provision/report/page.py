"""Evidence -> the page. Pure.

The page invents nothing: `missing` lists what the evidence lacks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from provision.core.dataclass import frozen
from provision.core.documents import Passport
from provision.report.load import EvidenceFile, SmokeRun
from provision_runtime.report import model
from provision_runtime.report.model import Report
from provision_runtime.report.table import name_ranks
from provision_runtime.report.text import format_bytes, format_count


@frozen
class Page:
    """What the page says, also as `--json`. verdict: the worst in the files."""

    title: str
    verdict: str
    files: tuple[EvidenceFile, ...]
    missing: tuple[str, ...]


def build_page(files: Sequence[EvidenceFile]) -> Page:
    """The page of some files, in their order."""
    verdicts = [run.verdict for file in files for run in file.runs]
    if any(file.outdated for file in files):
        verdicts.append(model.UNKNOWN)
    title, *more = dict.fromkeys(_name(file) for file in files)
    hosts = {run.host for file in files for run in file.runs}
    if more:
        title = f"{len(more) + 1} environments"
    elif len(hosts) > 1:
        title = f"{title} on {len(hosts)} hosts"
    missing = []
    for file in files:
        if not file.runs:
            missing.append(f"{file.source}: no smoke test was run.")
        if file.outdated:
            command = f"`provision build {_name(file)}`"
            missing.append(f"{file.source}: {file.outdated}. {command} writes a new one.")
        if file.passport is None:
            reason = "it does not say how its environment was made"
            missing.append(f"{file.source}: a smoke report alone; {reason}.")
    return Page(
        title=title, verdict=model.overall(verdicts), files=tuple(files), missing=tuple(missing)
    )


def template_values(page: Page) -> dict[str, object]:
    """The values of templates/report.html.j2."""
    runs = []
    # By collective and run: its measurements by size.
    curves: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    environments: dict[tuple[str, str], list[EvidenceFile]] = {}
    for file in page.files:
        if file.passport:
            key = (file.passport["name"], file.passport["lock"]["sha256"])
            environments.setdefault(key, []).append(file)
        for run in file.runs:
            label = f"{_name(file)} in the {run.location} on {run.host}"
            if len(page.files) > 1:
                label += f" ({file.source})"
            runs.append((label, run, list(_notes(file, run))))
            rows = _phase_data(run.report, "collectives").get("rows", [])
            for row in sorted(rows, key=lambda row: int(row["bytes"])):
                series = f"{label}, {row['dtype']}"
                curves.setdefault(row["collective"], {}).setdefault(series, []).append(row)
    return {
        "page": page,
        "headline": f"{page.title}, {page.verdict}, {format_count(len(runs), 'run')} of the smoke test",
        "runs": runs,
        "curves": curves,
        "environments": list(environments.values()),
        "products": products,
        "format_bytes": format_bytes,
        "format_measured": format_measured,
        "format_value": format_value,
        "gpus": _gpus,
        "json_text": partial(json.dumps, indent=1, ensure_ascii=False),
        "name_ranks": name_ranks,
    }


def _name(file: EvidenceFile) -> str:
    return file.passport["name"] if file.passport else "smoke test"


def products(passport: Passport) -> dict[str, str]:
    """What was made, in words."""
    lock, image, kernel = passport["lock"], passport["image"], passport["kernel"]
    runtime = passport.get("runtime")
    texts = {
        "lock": f"{lock['packages']} packages, sha256 {lock['sha256']}",
        "prefix": passport["prefix"]["path"],
        "image": "none was made",
        "kernel": kernel["name"] if kernel else "none was registered",
    }
    if not lock["portable"]:
        texts["lock"] += "; not portable: its Python is that of the machine that made it"
    if runtime:
        texts["runtime"] = f"{runtime['name']} {runtime['version']} in the prefix"
    if image:
        texts["image"] = f"{image['reference']}, {image['manifest_digest']}, on {image['base']}"
    return texts


def _phase_data(report: Report, name: str) -> Mapping[str, Any]:
    """The data of a phase; empty if it did not run."""
    return next((phase.data for phase in report.phases if phase.name == name), {})


def _gpus(report: Report) -> str:
    """The GPUs of all ranks by name; empty without GPUs."""
    ranks = _phase_data(report, "facts").get("ranks", [])
    names = Counter(rank["gpu_name"] for rank in ranks if rank.get("gpu_name"))
    return ", ".join(f"{count} x {name}" for name, count in names.items())


def _notes(file: EvidenceFile, run: SmokeRun) -> Iterator[str]:
    """What limits a run's result."""
    report = run.report
    if file.outdated:
        yield f"It does not count for the environment as it is now: {file.outdated}."
    if run.verdict != report.verdict:
        reported = f"The report says {report.verdict}, but the test did not end that way"
        yield f"{reported}: the verdict is {run.verdict}."
    if report.device == "cpu":
        yield "It ran on the CPU: that proves correctness, not the speed of GPUs and their links."
    if report.world_size == 1:
        yield "There was one rank: what several ranks do together was not tested."


def format_value(value: Any) -> str:
    """A value of a JSON document as people write it."""
    if isinstance(value, list):
        return ", ".join(map(format_value, value)) or "none"
    if value is None or value == {}:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def format_measured(value: float | None, unit: str) -> str:
    """Three digits, and times in the unit that fits; `-` if it was not measured."""
    if value is None:
        return "-"
    if unit == "us":
        if value >= 1e6:
            return f"{value / 1e6:.3g} s"
        return f"{value / 1e3:.3g} ms" if value >= 1e3 else f"{value:.3g} µs"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
