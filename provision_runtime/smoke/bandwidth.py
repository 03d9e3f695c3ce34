"""Is the bandwidth what it should be? Judges measured busbw by published curves: over the size of
the message, by GPU, number of ranks, hosts, fabric and collective.

Owns bandwidth_reference.json, which is shipped, and the format of `--expect FILE`, which is the
same; every curve names its source. Pure except for reading the file. A line without a curve, or
with a message too small to judge, gets an answer, but no finding.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..report.text import format_bytes
from .outcome import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHIPPED = Path(__file__).with_name("bandwidth_reference.json")
SCHEMA = 1
MIB, GIB = 1 << 20, 1 << 30
UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": MIB, "GIB": GIB}
SIZE = re.compile(r"(\d+)\s*([a-zA-Z]*)$")
# Smaller messages do not show the bandwidth: 256 MiB reaches 90 % of what 16 GiB does on
# 8xH200.
JUDGED_FROM_BYTES = 512 * MIB
ANY = "*"
NCCL, GLOO = BACKENDS = ("nccl", "gloo")
NVLS = "NVLS"
CPU = "cpu"
REQUIRED_KEYS = ("device", "ranks", "points")
TEXT_KEYS = ("backend", "fabric", "algorithm", "collective", "condition", "source")
KEYS = (*REQUIRED_KEYS, "hosts", "from", *TEXT_KEYS)
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


class ReferenceUnreadable(ValueError):
    """The file has no valid reference curves; the text names the wrong entry and what is right."""


@dataclass(frozen=True)
class Hardware:
    """What a curve is chosen by. `fabric` is the driver of the network cards between hosts, as
    `efa` or `mlx5_core`."""

    device: str
    ranks: int
    hosts: int
    fabric: str = ""
    # Whether NCCL may add up in the switch: it can since 2.17, unless its settings forbid it.
    nvls: bool = False
    backend: str = NCCL


@dataclass(frozen=True)
class Curve:
    """`points`: (size in bytes, GB/s), by size."""

    device: str
    ranks: int
    points: tuple[tuple[int, float], ...]
    hosts: int = 1
    fabric: str = ANY
    algorithm: str = ""
    collective: str = "all_reduce"
    from_bytes: int = JUDGED_FROM_BYTES
    condition: str = ""
    source: str = ""
    # Empty: NCCL between GPUs, Gloo between CPUs.
    backend: str = ""

    def fits(self, hardware: Hardware, collective: str) -> bool:
        backend = self.backend or (GLOO if hardware.device == CPU else NCCL)
        return (
            self.ranks == hardware.ranks
            and self.hosts == hardware.hosts
            and self.collective == collective
            and backend == hardware.backend
            and fnmatchcase(hardware.device, self.device)
            and fnmatchcase(hardware.fabric, self.fabric)
        )

    def at(self, size_bytes: int) -> float:
        """Interpolates by the logarithm of the size; constant before the first and after the last
        point."""
        smaller = [point for point in self.points if point[0] <= size_bytes]
        larger = [point for point in self.points if point[0] >= size_bytes]
        if not smaller:
            return larger[0][1]
        if not larger:
            return smaller[-1][1]
        (low, low_gb_s), (high, high_gb_s) = smaller[-1], larger[0]
        if low == high:
            return low_gb_s
        share = math.log(size_bytes / low) / math.log(high / low)
        return low_gb_s + share * (high_gb_s - low_gb_s)

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.device, f"x {self.ranks}", self.algorithm)))


@dataclass(frozen=True)
class ReferenceCurves:
    """The contents of a file. `wires`: what one GPU's links carry in one direction, by device."""

    curves: tuple[Curve, ...]
    wires: tuple[tuple[str, float], ...] = ()

    def find(self, hardware: Hardware, collective: str) -> Curve | None:
        """The curve that fits; of several, the one of the algorithm that NCCL will use."""
        fitting = [curve for curve in self.curves if curve.fits(hardware, collective)]
        for curve in fitting:
            if (curve.algorithm == NVLS) == hardware.nvls:
                return curve
        # Without a curve for NVLS the others hold (all_gather, or too few GPUs for it).
        if hardware.nvls and fitting:
            return fitting[0]
        return None

    def wire_gb_s(self, device: str) -> float | None:
        for pattern, rate in self.wires:
            if fnmatchcase(device, pattern):
                return rate
        return None


def load_curves(path: Path = SHIPPED) -> ReferenceCurves:
    """Raises ReferenceUnreadable."""
    try:
        return parse_curves(json.loads(path.read_text()))
    except OSError as error:
        raise ReferenceUnreadable(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ReferenceUnreadable(f"{path}: {error}") from error


def parse_curves(document: Any) -> ReferenceCurves:
    """Raises ValueError, which names the entry."""
    is_reference = isinstance(document, dict) and document.get("schema") == SCHEMA
    if not is_reference or not isinstance(document.get("curves"), list):
        raise ValueError(f'it must be an object with "schema": {SCHEMA} and a list "curves"')
    curves = []
    for number, entry in enumerate(document["curves"], 1):
        curves.append(_curve(entry, f"curve {number}"))
    wires = []
    for device, rate in document.get("wires", {}).items():
        wires.append((device, _rate(rate, f"wires of {device}")))
    return ReferenceCurves(tuple(curves), tuple(wires))


def size_bytes(text: str) -> int:
    """Raises ValueError."""
    match = SIZE.match(text.strip())
    unit = UNITS.get(match[2].upper()) if match else None
    if not match or unit is None or not int(match[1]):
        raise ValueError(f"{text!r} is not a size; write 512MiB, 16GiB or a number of bytes")
    return int(match[1]) * unit


def may_use_nvls(environment: Mapping[str, str], nccl: str | None) -> bool:
    """Whether NCCL of this version may use NVLS under these variables."""
    if environment.get("NCCL_NVLS_ENABLE") == "0":
        return False
    if NVLS not in environment.get("NCCL_ALGO", NVLS).upper():
        return False
    release = re.match(r"(\d+)\.(\d+)", nccl or "")
    return release is not None and (int(release[1]), int(release[2])) >= (2, 17)


def _curve(entry: Any, where: str) -> Curve:
    if not isinstance(entry, dict):
        raise ValueError(f"{where} is not an object")
    for key in entry:
        if key not in KEYS:
            raise ValueError(f"{where}: no such key: {key!r}; there are {', '.join(KEYS)}")
    missing = [key for key in REQUIRED_KEYS if key not in entry]
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} is missing")
    texts = {key: _text(entry[key], f"{where}, {key}") for key in TEXT_KEYS if key in entry}
    if texts.get("backend", NCCL) not in BACKENDS:
        raise ValueError(f"{where}, backend: {texts['backend']!r} is neither nccl nor gloo")
    return Curve(
        device=_text(entry["device"], f"{where}, device"),
        ranks=_count(entry["ranks"], f"{where}, ranks"),
        hosts=_count(entry.get("hosts", 1), f"{where}, hosts"),
        points=_points(entry["points"], where),
        from_bytes=size_bytes(str(entry.get("from", JUDGED_FROM_BYTES))),
        **texts,
    )


def _points(value: Any, where: str) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, dict) or not value:
        raise ValueError(
            f'{where}, points: it must be an object of sizes and GB/s, as {{"512MiB": 450.3}}'
        )
    points = []
    for size, rate in value.items():
        points.append((size_bytes(size), _rate(rate, f"{where} at {size}")))
    return tuple(sorted(points))


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: {value!r} is not a string")
    return value


def _count(value: Any, where: str) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{where}: {value!r} is not a whole number above 0")
    return value


def _rate(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{where}: {value!r} is not a number of GB/s above 0")
    return float(value)


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
        if hardware.device == CPU:
            return LineVerdict(REHEARSAL)
        if hardware.backend == GLOO:
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
    advice = NVLS_ADVICE if curve.algorithm == NVLS else ""
    return Finding(verdict.finding_id, message, tuple(range(hardware.ranks)), advice)


def expected_curves(
    hardware: Hardware, curves: ReferenceCurves, collectives: Sequence[str]
) -> dict[str, Any]:
    """For the report: for each collective the curve that it was judged by, or that it has none."""
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
