"""A run's bandwidths, saved so that later runs can be compared with them. Pure except for reading
and writing the file.

Only messages from 1 MiB on are judged. Smaller ones are saved and shown: their times depend on the
scheduler more than on the network.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, List, Optional, TypedDict

from .. import fs
from ..report.codec import decode
from ..report.text import format_bytes
from . import measurement
from .outcome import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .bandwidth import Line

KIND = "smoke-baseline"
JUDGED_FROM_BYTES = 1 << 20
# SuperBench's rule: more than 5 % below the baseline is a defect.
TOLERATED_ON_GPU = 1.05
# Gloo's speed on CPUs depends on the scheduler; a smaller ratio means nothing.
TOLERATED_ON_CPU = 3.0


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
    nccl: Optional[str] = None


@dataclass(frozen=True)
class SavedRow:
    """What a baseline has of a line of the table."""

    collective: str
    dtype: str
    bytes: int
    time_us_max: float
    time_us_min: float
    busbw_gb_s: Optional[float]


@dataclass(frozen=True)
class Baseline:
    identity: Identity
    rows: List[SavedRow]
    kind: str = KIND


class Comparison(TypedDict, total=False):
    """For the report."""

    result: str
    compared: int
    slower: int


def save(path: Path, identity: Identity, lines: Sequence[Line]) -> None:
    rows = []
    for line in lines:
        values: Any = line
        rows.append(SavedRow(**{name: values[name] for name in SavedRow.__dataclass_fields__}))
    text = json.dumps(asdict(Baseline(identity, rows)), indent=2) + "\n"
    fs.atomic_write(path, text.encode())


def load(path: Path) -> Baseline:
    """Raises BaselineUnreadable."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise BaselineUnreadable(
            f"there is no baseline at {path}: make one with save on a healthy machine"
        ) from error
    except (OSError, ValueError) as error:
        raise BaselineUnreadable(f"{path} cannot be read: {error}") from error
    try:
        baseline: Baseline = decode(Baseline, content, "baseline")
    except ValueError as error:
        raise BaselineUnreadable(f"{path} is not a baseline: {error}") from error
    return baseline


def differences(saved: Identity, identity: Identity) -> list[str]:
    """How the machine or environment of the baseline differs from this one."""
    before, now = asdict(saved), asdict(identity)
    return [
        f"{name} was {before[name]}, is {now[name]}"
        for name in now
        if name != "nccl" and before[name] != now[name]
    ]


def compare(
    saved: Baseline, identity: Identity, lines: Sequence[Line], on_gpu: bool
) -> tuple[Comparison, tuple[Finding, ...]]:
    """The comparison for the report, and its findings.

    On a GPU by the median; on CPUs by the best iteration, which other work on the machine disturbs
    least.
    """
    all_ranks = tuple(range(identity.ranks))
    rows = {(row.collective, row.dtype, row.bytes): row for row in saved.rows}
    pairs = []
    for line in lines:
        before = rows.get((line["collective"], line["dtype"], line["bytes"]))
        if before is not None:
            pairs.append((before, line))
    reasons = differences(saved.identity, identity)
    if not reasons and not pairs:
        reasons = ["it has no line that this run measured (use the same setting profile)"]
    if reasons:
        message = f"the baseline cannot be compared: {'; '.join(reasons)}"
        return {"compared": 0, "result": message}, (Finding("baseline-unlike", message, all_ranks),)
    findings = []
    for before, line in pairs:
        before_usec, now_usec, tolerated = before.time_us_min, line["time_us_min"], TOLERATED_ON_CPU
        if on_gpu:
            before_usec, now_usec = before.time_us_max, line["time_us_max"]
            tolerated = TOLERATED_ON_GPU
        if line["bytes"] >= JUDGED_FROM_BYTES and now_usec / before_usec > tolerated:
            message = (
                f"{line['collective']} {line['dtype']} of {format_bytes(line['bytes'])} takes "
                f"{measurement.format_time(now_usec)} instead of {measurement.format_time(before_usec)}, "
                f"{now_usec / before_usec:.2f} times the baseline"
            )
            findings.append(Finding("baseline-regressed", message, all_ranks))
    data: Comparison = {"compared": len(pairs), "slower": len(findings), "result": "compared"}
    return data, tuple(findings)
