"""A run's bandwidths, saved so that later runs can be compared with them. Pure except for reading
and writing the file.

Only messages from 1 MiB on are judged. Smaller ones are saved and shown: their times depend on the
scheduler more than on the network.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .. import fs
from ..report.text import format_bytes
from . import measurement
from .outcome import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Lines = Sequence[Mapping[str, Any]]

SCHEMA = 1
KIND = "smoke-baseline"
JUDGED_FROM_BYTES = 1 << 20
# SuperBench's rule: more than 5 % below the baseline is a defect.
TOLERATED_ON_GPU = 1.05
# Gloo's speed on CPUs depends on the scheduler; a smaller ratio means nothing.
TOLERATED_ON_CPU = 3.0
SAVED_COLUMNS = ("collective", "dtype", "bytes", "time_us_max", "time_us_min", "busbw_gb_s")
COMPARED_IDENTITY = ("backend", "device", "ranks", "hosts", "torch")


class BaselineUnreadable(ValueError):
    """The file is not a baseline."""


@dataclass(frozen=True)
class Identity:
    """Runs that differ in any of these are not compared, except for `nccl`: a new NCCL is a reason
    to compare."""

    backend: str
    device: str
    ranks: int
    hosts: int
    torch: str
    nccl: str | None = None


@dataclass(frozen=True)
class Regression:
    name: str
    bytes: int
    before_us: float
    now_us: float

    @property
    def ratio(self) -> float:
        return self.now_us / self.before_us


def document(identity: Identity, lines: Lines) -> str:
    rows = [{column: line[column] for column in SAVED_COLUMNS} for line in lines]
    content = {"schema": SCHEMA, "kind": KIND, "identity": asdict(identity), "rows": rows}
    return json.dumps(content, indent=2) + "\n"


def save(path: Path, identity: Identity, lines: Lines) -> None:
    fs.atomic_write(path, document(identity, lines).encode())


def load(path: Path) -> dict[str, Any]:
    """Raises BaselineUnreadable."""
    try:
        baseline = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise BaselineUnreadable(
            f"there is no baseline at {path}: make one with save on a healthy machine"
        ) from error
    except (OSError, ValueError) as error:
        raise BaselineUnreadable(f"{path} cannot be read: {error}") from error
    if not isinstance(baseline, dict):
        raise BaselineUnreadable(f"{path} is not a baseline of schema {SCHEMA}")
    if (baseline.get("schema"), baseline.get("kind")) != (SCHEMA, KIND):
        raise BaselineUnreadable(f"{path} is not a baseline of schema {SCHEMA}")
    if not isinstance(baseline.get("identity"), dict) or not _are_rows(baseline.get("rows")):
        columns = ", ".join(SAVED_COLUMNS)
        raise BaselineUnreadable(
            f"{path} is damaged: a baseline has an identity, and rows with {columns}"
        )
    return baseline


def _are_rows(rows: Any) -> bool:
    if not isinstance(rows, list):
        return False
    return all(
        isinstance(row, dict) and all(column in row for column in SAVED_COLUMNS) for row in rows
    )


def differences(baseline: Mapping[str, Any], identity: Identity) -> list[str]:
    """How the machine or environment of the baseline differs from this one."""
    before, now = baseline["identity"], asdict(identity)
    texts = []
    for name in COMPARED_IDENTITY:
        if before.get(name) != now[name]:
            texts.append(f"{name} was {before.get(name)}, is {now[name]}")
    return texts


def pairs(
    baseline: Mapping[str, Any], lines: Lines
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """(before, now) for each line that was measured both times."""
    before = {(row["collective"], row["dtype"], row["bytes"]): row for row in baseline["rows"]}
    result = []
    for line in lines:
        key = (line["collective"], line["dtype"], line["bytes"])
        if key in before:
            result.append((before[key], line))
    return result


def regressions(baseline: Mapping[str, Any], lines: Lines, on_gpu: bool) -> list[Regression]:
    """On a GPU by the median; on CPUs by the best iteration, which other work on the machine
    disturbs least."""
    if on_gpu:
        column, tolerated = "time_us_max", TOLERATED_ON_GPU
    else:
        column, tolerated = "time_us_min", TOLERATED_ON_CPU
    result = []
    for before, now in pairs(baseline, lines):
        name = f"{now['collective']} {now['dtype']}"
        regression = Regression(name, now["bytes"], before[column], now[column])
        if now["bytes"] >= JUDGED_FROM_BYTES and regression.ratio > tolerated:
            result.append(regression)
    return result


def compare(
    saved: Mapping[str, Any],
    identity: Identity,
    lines: Sequence[Mapping[str, Any]],
    on_gpu: bool,
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """The comparison for the report, and its findings."""
    all_ranks = tuple(range(identity.ranks))
    compared = len(pairs(saved, lines))
    reasons = differences(saved, identity)
    if not reasons and not compared:
        reasons = ["it has no line that this run measured (use the same --profile)"]
    if reasons:
        message = f"the baseline cannot be compared: {'; '.join(reasons)}"
        finding = Finding("baseline-unlike", message, all_ranks)
        return {"compared": 0, "answer": message}, (finding,)
    findings = []
    for regression in regressions(saved, lines, on_gpu):
        before = measurement.format_time(regression.before_us)
        now = measurement.format_time(regression.now_us)
        message = (
            f"{regression.name} of {format_bytes(regression.bytes)} takes {now} instead of {before}, "
            f"{regression.ratio:.2f} times the baseline"
        )
        findings.append(Finding("baseline-regressed", message, all_ranks))
    data = {"compared": compared, "slower": len(findings), "answer": "compared"}
    return data, tuple(findings)
