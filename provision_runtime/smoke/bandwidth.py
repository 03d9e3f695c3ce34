"""Is the bandwidth what it should be? Judges measured busbw by published curves: over the size of
the message, by GPU, number of ranks, hosts, fabric and collective. Where there is no curve, the
slowest wire that a ring must cross is the limit (wire_limit), for any number of hosts.

bandwidth_reference.json has the curves, each with its source. Pure except for reading that file. A
line that neither can judge, or with a message too small for both, gets a remark, but no finding.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, TypedDict

from ..report.codec import packaged_json
from ..report.text import format_bytes
from . import wire_limit
from .outcome import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .wire_limit import WireLimit

MIB, GIB = 1 << 20, 1 << 30
UNITS = {"": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": GIB}
SIZE = re.compile(r"(\d+)(\w*)")
# Smaller messages do not show the bandwidth: 256 MiB reaches 90 % of what 16 GiB does on
# 8xH200.
JUDGED_FROM_BYTES = 512 * MIB
ANY = "*"
NCCL, GLOO = "nccl", "gloo"
NVLS = "NVLS"
CPU = "cpu"
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
WIRE_ADVICE = (
    "see which transport NCCL chose (facts of the phase collectives, or NCCL_DEBUG=INFO): traffic"
    " that should use this wire takes another path, or the wire is not as fast as it reports"
)


class Line(TypedDict, total=False):
    """A row of the report's table: a collective in one type and size, over all ranks."""

    collective: str
    dtype: str
    bytes: int
    count: int
    iterations: int
    time_us_max: float
    time_us_mean: float
    time_us_min: float
    time_us_p99: float
    time_us_by_rank: list[float]
    slowest_rank: int
    algbw_gb_s: float
    busbw_gb_s: float | None
    wrong: int
    expected_gb_s: float | None
    judged: str


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
class ReferenceCurve:
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

    def fits(self, hardware: Hardware, collective: str) -> bool:
        return (
            self.ranks == hardware.ranks
            and self.hosts == hardware.hosts
            and self.collective == collective
            and hardware.backend == NCCL
            and fnmatchcase(hardware.device, self.device)
            # A host may have cards of several kinds: an EFA host also has other RDMA cards.
            and any(fnmatchcase(name, self.fabric) for name in hardware.fabric.split(","))
        )

    def at(self, size_bytes: int, shape: ReferenceCurve | None = None) -> float:
        """Interpolates by the logarithm of the size; constant after the last point. Before the
        first point the expectation falls as the curve `shape` does, or is constant without it."""
        smaller = [point for point in self.points if point[0] <= size_bytes]
        larger = [point for point in self.points if point[0] >= size_bytes]
        if not smaller:
            first_size, first_gb_s = larger[0]
            if shape is None:
                return first_gb_s
            return first_gb_s * min(shape.at(size_bytes) / shape.at(first_size), 1.0)
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
    """The contents of a file."""

    curves: tuple[ReferenceCurve, ...]
    # How bandwidth grows with the size, for curves that have one large size only.
    shape: ReferenceCurve | None = None

    def find(self, hardware: Hardware, collective: str) -> ReferenceCurve | None:
        """The curve that fits; of several, the one of the algorithm that NCCL will use."""
        fitting = [curve for curve in self.curves if curve.fits(hardware, collective)]
        for curve in fitting:
            if (curve.algorithm == NVLS) == hardware.nvls:
                return curve
        # Without a curve for NVLS the others hold (all_gather, or too few GPUs for it).
        if hardware.nvls and fitting:
            return fitting[0]
        return None


@lru_cache(maxsize=1)
def load_curves() -> ReferenceCurves:
    """The published curves."""
    document = packaged_json(__package__, "bandwidth_reference.json")
    curves = []
    for entry in document["curves"]:
        fields = dict(entry)
        if "from" in fields:
            fields["from_bytes"] = parse_size(fields.pop("from"))
        points = {parse_size(size): float(rate) for size, rate in entry["points"].items()}
        curves.append(ReferenceCurve(**{**fields, "points": tuple(sorted(points.items()))}))
    return ReferenceCurves(tuple(curves), curves[document["shape"] - 1])


def parse_size(text: str) -> int:
    """Bytes of `512MiB`, or of a number."""
    match = SIZE.fullmatch(text)
    assert match is not None
    return int(match[1]) * UNITS[match[2]]


def may_use_nvls(environment: Mapping[str, str], nccl: str | None) -> bool:
    """Whether NCCL of this version may use NVLS under these variables."""
    if environment.get("NCCL_NVLS_ENABLE") == "0":
        return False
    if NVLS not in environment.get("NCCL_ALGO", NVLS).upper():
        return False
    release = re.match(r"(\d+)\.(\d+)", nccl or "")
    return release is not None and (int(release[1]), int(release[2])) >= (2, 17)


@dataclass(frozen=True)
class LineVerdict:
    """The verdict on one line. `remark` is for the table; the other fields are of the finding, if
    there is one. `share`: of the least that is fine."""

    remark: str
    expected_gb_s: float | None = None
    finding_id: str = ""
    message: str = ""
    advice: str = ""
    share: float = 1.0


def judge_line(
    line: Line,
    hardware: Hardware,
    curves: ReferenceCurves,
    limit: WireLimit | None = None,
) -> LineVerdict:
    """By the curve if there is one for this size, else by the slowest wire."""
    busbw, size_bytes = line["busbw_gb_s"], line["bytes"]
    if busbw is None:
        return LineVerdict(ONE_RANK)
    if hardware.backend == GLOO:
        return LineVerdict(REHEARSAL if hardware.device == CPU else THROUGH_THE_HOST)
    curve = curves.find(hardware, line["collective"])
    if curve is not None and line["bytes"] >= curve.from_bytes:
        expected = curve.at(size_bytes, curves.shape)
        share = busbw / expected
        if share >= FINE:
            return LineVerdict("fine", expected)
        finding_id = "bandwidth-reduced" if share >= BAD else "bandwidth-low"
        remark = f"{share:.0%} of what is expected"
        source = f" ({curve.source})" if curve.source else ""
        message = f"{remark}: {expected:.4g} GB/s for {curve.name}{source}"
        advice = NVLS_ADVICE if curve.algorithm == NVLS else ""
        return LineVerdict(remark, expected, finding_id, message, advice, share)
    is_ring = line["collective"] in wire_limit.RING_COLLECTIVES
    if limit is not None and is_ring and size_bytes >= JUDGED_FROM_BYTES:
        return _judge_by_wire(line, busbw, hardware, limit)
    if curve is not None:
        return LineVerdict(TOO_SMALL, curve.at(size_bytes, curves.shape))
    return LineVerdict(UNKNOWN if limit is None else TOO_SMALL)


def _judge_by_wire(line: Line, busbw: float, hardware: Hardware, limit: WireLimit) -> LineVerdict:
    slowest, warning = limit.slowest, limit.warning
    if hardware.nvls and line["collective"] == "all_reduce":
        warning = limit.in_switch or warning
    for wire, bound, finding_id in (
        (slowest, "fail", "bandwidth-low"),
        (warning, "warn", "bandwidth-reduced"),
    ):
        least_gb_s = wire.least_gb_s(bound, line["bytes"])
        remark = f"{busbw / wire.gb_s:.0%} of what {wire.name} allow"
        if busbw < least_gb_s:
            # The first of its sources; the file has them all.
            source = wire_limit.reference()["kinds"][wire.kind]["source"].split(": ")[0]
            message = (
                f"{remark} ({wire.gb_s:.4g} GB/s); in such a message healthy ones reach"
                f" {least_gb_s:.4g} GB/s and more ({source})"
            )
            return LineVerdict(remark, None, finding_id, message, WIRE_ADVICE, busbw / least_gb_s)
    return LineVerdict(f"fine; {busbw / slowest.gb_s:.0%} of what {slowest.name} allow")


def judge_lines(
    lines: Sequence[Line],
    hardware: Hardware,
    curves: ReferenceCurves,
    limit: WireLimit | None = None,
) -> tuple[Finding, ...]:
    """Adds the verdicts to the lines. Returns a finding for each collective and type, about its worst
    line."""
    worst: dict[tuple[str, str], tuple[float, Finding]] = {}
    for line in lines:
        verdict = judge_line(line, hardware, curves, limit)
        expected = verdict.expected_gb_s
        line["expected_gb_s"] = None if expected is None else round(expected, 3)
        line["judged"] = verdict.remark
        if not verdict.finding_id:
            continue
        key = (line["collective"], line["dtype"])
        message = (
            f"{line['collective']} of {format_bytes(line['bytes'])} in {line['dtype']}: "
            f"busbw {line['busbw_gb_s']:.4g} GB/s, {verdict.message}"
        )
        finding = Finding(verdict.finding_id, message, tuple(range(hardware.ranks)), verdict.advice)
        if key not in worst or verdict.share < worst[key][0]:
            worst[key] = (verdict.share, finding)
    return tuple(finding for _, finding in sorted(worst.values(), key=lambda entry: entry[0]))


def expected_curves(
    hardware: Hardware, curves: ReferenceCurves, collectives: Sequence[str]
) -> dict[str, object]:
    """For the report: for each collective the curve that it was judged by, or that it has none."""
    expected: dict[str, object] = {}
    for collective in collectives:
        curve = curves.find(hardware, collective)
        expected[collective] = UNKNOWN
        if curve is not None:
            expected[collective] = {
                "name": curve.name,
                "source": curve.source,
                "condition": curve.condition,
                "from_bytes": curve.from_bytes,
                "points": curve.points,
            }
    return expected
