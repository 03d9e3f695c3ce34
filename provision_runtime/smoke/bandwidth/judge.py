"""Is the bandwidth what it should be? Pure: lines of the table and reference curves in, verdicts
and findings out.

A line for which there is no curve, or whose message is too small to tell, gets an answer, but no
finding.
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

    from .reference import Curve, Hardware, ReferenceCurves

# nccl-tests itself fails below 0.9 of the expected mean; more than 20 % below, something is broken.
FINE, BAD = 0.9, 0.8
ONE_RANK = "n = 1: not applicable"
UNKNOWN = "not known for this hardware"
TOO_SMALL = "size too small to judge"
REHEARSAL = "Gloo on CPUs: not judged"
THROUGH_THE_HOST = "Gloo moves GPU tensors through the host: not judged"
# A ring reaches three quarters of what the switch does: the usual reason for that figure.
NVLS_ADVICE = (
    "check with NCCL_DEBUG=INFO whether NCCL uses NVLS; run again with NCCL_NVLS_ENABLE=0, which is"
    " judged as a ring, to see whether that is the only cause"
)


@dataclass(frozen=True)
class LineVerdict:
    """The verdict on one line. `answer` is for people; `finding_id` is empty if all is well."""

    answer: str
    expected_gb_s: float | None = None
    finding_id: str = ""


def judge_line(line: Mapping[str, Any], hardware: Hardware, curves: ReferenceCurves) -> LineVerdict:
    busbw = line["busbw_gb_s"]
    if busbw is None:
        return LineVerdict(ONE_RANK)
    curve = curves.find(hardware, line["collective"])
    if curve is None:
        if hardware.device == reference.CPU:
            return LineVerdict(REHEARSAL)
        if hardware.backend == reference.GLOO:
            return LineVerdict(THROUGH_THE_HOST)
        return LineVerdict(UNKNOWN)
    expected = curve.at(line["bytes"])
    if line["bytes"] < curve.from_bytes:
        return LineVerdict(TOO_SMALL, expected)
    share = busbw / expected
    if share < FINE:
        finding_id = "bandwidth-reduced" if share >= BAD else "bandwidth-low"
        return LineVerdict(f"{share:.0%} of what is expected", expected, finding_id)
    wire = curves.wire_gb_s(hardware.device)
    if wire is not None and busbw > wire:
        # busbw assumes that the ranks add up; if the switch does, less crosses the wire than that.
        answer = f"fine; above the wire's {wire:g} GB/s, as the switch adds up (NVLS)"
        return LineVerdict(answer, expected)
    return LineVerdict("fine", expected)


def judge_lines(
    lines: Sequence[dict[str, Any]], hardware: Hardware, curves: ReferenceCurves
) -> tuple[list[dict[str, Any]], tuple[Finding, ...]]:
    """The lines with their answers; and a finding for each collective and type, about its worst
    line."""
    judged_lines = []
    bad: list[tuple[float, dict[str, Any], LineVerdict]] = []
    for line in lines:
        verdict = judge_line(line, hardware, curves)
        expected = verdict.expected_gb_s
        rounded = None if expected is None else round(expected, 3)
        judged_lines.append({**line, "expected_gb_s": rounded, "judged": verdict.answer})
        if verdict.finding_id:
            bad.append((line["busbw_gb_s"] / (expected or 1.0), line, verdict))
    bad.sort(key=lambda entry: entry[0])
    findings: dict[tuple[str, str], Finding] = {}
    for _, line, verdict in bad:
        key = (line["collective"], line["dtype"])
        if key not in findings:
            findings[key] = _bandwidth_finding(line, verdict, hardware, curves)
    return judged_lines, tuple(findings.values())


def _bandwidth_finding(
    line: Mapping[str, Any], verdict: LineVerdict, hardware: Hardware, curves: ReferenceCurves
) -> Finding:
    curve = curves.find(hardware, line["collective"])
    assert curve is not None
    source = f" ({curve.source})" if curve.source else ""
    message = (
        f"{line['collective']} of {format_bytes(line['bytes'])} in {line['dtype']}: "
        f"busbw {line['busbw_gb_s']:.4g} GB/s, {verdict.answer}: "
        f"{verdict.expected_gb_s:.4g} GB/s for {curve.name}{source}"
    )
    advice = NVLS_ADVICE if curve.algorithm == reference.NVLS else ""
    return Finding(verdict.finding_id, message, tuple(range(hardware.ranks)), advice)


def expected_curves(
    hardware: Hardware, curves: ReferenceCurves, collectives: Sequence[str]
) -> dict[str, Any]:
    """For the report: by collective the curve that it was judged by, or the answer that there is
    none."""
    expected: dict[str, Any] = {}
    for collective in collectives:
        curve = curves.find(hardware, collective)
        expected[collective] = UNKNOWN if curve is None else _curve_json(curve)
    return expected


def _curve_json(curve: Curve) -> dict[str, Any]:
    return {
        "name": curve.name,
        "source": curve.source,
        "condition": curve.condition,
        "from_bytes": curve.from_bytes,
        "points": [list(point) for point in curve.points],
    }


def compare_baseline(
    saved: Mapping[str, Any],
    identity: baseline.Identity,
    lines: Sequence[Mapping[str, Any]],
    on_gpu: bool,
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """What the report says of the comparison, and its findings."""
    all_ranks = tuple(range(identity.ranks))
    compared = len(baseline.pairs(saved, lines))
    differences = baseline.differences(saved, identity)
    if not differences and not compared:
        differences = ["it has no line that this run measured (use the same --profile)"]
    if differences:
        message = f"the baseline cannot be compared: {'; '.join(differences)}"
        finding = Finding("baseline-unlike", message, all_ranks)
        return {"compared": 0, "answer": message}, (finding,)
    findings = []
    for regression in baseline.regressions(saved, lines, on_gpu):
        message = (
            f"{regression.name} of {format_bytes(regression.bytes)} takes "
            f"{timing.format_time(regression.now_us)} instead of "
            f"{timing.format_time(regression.before_us)}, {regression.ratio:.2f} times the baseline"
        )
        findings.append(Finding("baseline-regressed", message, all_ranks))
    data = {"compared": compared, "slower": len(findings), "answer": "compared"}
    return data, tuple(findings)
