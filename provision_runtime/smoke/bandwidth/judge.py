"""Is the bandwidth what it should be? Pure: lines of the table and what is known in, answers and findings out.

Not knowing, and a message too small to tell, are answers and no findings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...report.text import format_bytes
from .. import timing
from ..outcome import Finding
from . import baseline, reference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# nccl-tests itself fails below 0.9 of what it was told to expect; more than 20 % below, something is off.
FINE, BAD = 0.9, 0.8
ALONE = "n = 1: not applicable"
UNKNOWN = "not known for this hardware"
TOO_SMALL = "size too small to judge"
REHEARSAL = "Gloo on CPUs: not judged"
THROUGH_THE_HOST = "Gloo moves what is on a GPU through the host: not judged"
# A ring reaches three quarters of what the switch does: the usual reason for that figure.
NVLS_ADVICE = "does NCCL use NVLS? NCCL_DEBUG=INFO says so; with NCCL_NVLS_ENABLE=0 the run is judged as a ring, to see whether that is all"


@dataclass(frozen=True)
class Verdict:
    """On one line: `answer` is for people; `id` is a finding's, or nothing."""

    answer: str
    expected_gb_s: float | None = None
    id: str = ""


def verdict(
    line: Mapping[str, Any], hardware: reference.Hardware, known: reference.Known
) -> Verdict:
    busbw = line["busbw_gb_s"]
    curve = known.curve(hardware, line["collective"])
    if busbw is None:
        return Verdict(ALONE)
    if curve is None:
        return Verdict(_unknown(hardware))
    wanted = curve.at(line["bytes"])
    if line["bytes"] < curve.from_bytes:
        return Verdict(TOO_SMALL, wanted)
    share = busbw / wanted
    if share >= FINE:
        return Verdict(_fine(busbw, known.wire_gb_s(hardware.device)), wanted)
    return Verdict(
        f"{share:.0%} of what is expected",
        wanted,
        "bandwidth-reduced" if share >= BAD else "bandwidth-low",
    )


def _unknown(hardware: reference.Hardware) -> str:
    if hardware.device == reference.CPU:
        return REHEARSAL
    return THROUGH_THE_HOST if hardware.backend == reference.GLOO else UNKNOWN


def _fine(busbw: float, wire: float | None) -> str:
    """busbw assumes that the ranks add up; where the switch does, less crosses the wire than it says."""
    if wire is not None and busbw > wire:
        return f"fine; above the wire's {wire:g} GB/s, as the switch adds up (NVLS)"
    return "fine"


def expectations(
    lines: Sequence[dict[str, Any]], hardware: reference.Hardware, known: reference.Known
) -> tuple[list[dict[str, Any]], tuple[Finding, ...]]:
    """The lines with their answers, and a finding per collective and type, of its worst line."""
    verdicts = [verdict(line, hardware, known) for line in lines]
    answered = [
        {
            **line,
            "expected_gb_s": None if v.expected_gb_s is None else round(v.expected_gb_s, 3),
            "judged": v.answer,
        }
        for line, v in zip(lines, verdicts)
    ]
    bad = [(line, v) for line, v in zip(lines, verdicts) if v.id]
    worst: dict[tuple[str, str], tuple[dict[str, Any], Verdict]] = {}
    for line, v in sorted(
        bad, key=lambda pair: pair[0]["busbw_gb_s"] / (pair[1].expected_gb_s or 1.0)
    ):
        worst.setdefault((line["collective"], line["dtype"]), (line, v))
    return answered, tuple(_slow(line, v, hardware, known) for line, v in worst.values())


def _slow(
    line: Mapping[str, Any], found: Verdict, hardware: reference.Hardware, known: reference.Known
) -> Finding:
    curve = known.curve(hardware, line["collective"])
    assert curve is not None
    told = f"{line['collective']} of {format_bytes(line['bytes'])} in {line['dtype']}: busbw {line['busbw_gb_s']:.4g} GB/s"
    source = f" ({curve.source})" if curve.source else ""
    message = f"{told}, {found.answer}: {found.expected_gb_s:.4g} GB/s for {curve.name}{source}"
    return Finding(
        found.id,
        message,
        tuple(range(hardware.ranks)),
        NVLS_ADVICE if curve.algorithm == reference.NVLS else "",
    )


def curves(
    hardware: reference.Hardware, known: reference.Known, collectives: Sequence[str]
) -> dict[str, Any]:
    """What was expected and by whom, for the report: by collective its curve, or the answer that there is none."""
    found = {collective: known.curve(hardware, collective) for collective in collectives}
    return {
        collective: UNKNOWN if curve is None else _curve(curve)
        for collective, curve in found.items()
    }


def _curve(curve: reference.Curve) -> dict[str, Any]:
    points = [list(point) for point in curve.points]
    return {
        "name": curve.name,
        "source": curve.source,
        "condition": curve.condition,
        "from_bytes": curve.from_bytes,
        "points": points,
    }


def against_baseline(
    found: Mapping[str, Any],
    now: baseline.Identity,
    lines: Sequence[Mapping[str, Any]],
    on_gpu: bool,
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    everyone = tuple(range(now.ranks))
    differences = baseline.unlike(found, now)
    if not differences and not baseline.pairs(found, lines):
        differences = ["nothing that it holds was measured now (another --profile)"]
    if differences:
        message = f"the baseline is of something else: {'; '.join(differences)}"
        return {"compared": 0, "answer": message}, (Finding("baseline-unlike", message, everyone),)
    slower = baseline.regressions(found, lines, on_gpu)
    findings = tuple(Finding("baseline-regressed", _slower(entry), everyone) for entry in slower)
    return {
        "compared": len(baseline.pairs(found, lines)),
        "slower": len(slower),
        "answer": "compared",
    }, findings


def _slower(entry: baseline.Regression) -> str:
    times = f"{timing.time_in_words(entry.is_us)} instead of {timing.time_in_words(entry.was_us)}"
    return f"{entry.name} of {format_bytes(entry.bytes)} takes {times}, {entry.ratio:.2f} times the baseline"
