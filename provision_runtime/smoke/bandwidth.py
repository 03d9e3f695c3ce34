"""Is the bandwidth what it should be? Judges measured busbw by what is published of the same GPUs on
one host. Where nothing is, the slowest wire that a ring must cross is the limit (wire_limit), for
any number of hosts.

bandwidth_reference.json has the figures, each with its source. Pure except for reading that file. A
line that neither can judge, or with a message too small for both, gets a remark, but no finding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypedDict

from ..checks.releases import numbers
from ..dataclass import frozen
from ..report.codec import packaged_json
from ..report.text import format_bytes
from . import wire_limit
from .outcome import Finding
from .wire_limit import WireLimit

MIB, GIB = 1 << 20, 1 << 30
UNITS = {"": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": GIB}
SIZE = re.compile(r"(\d+)(\w*)")
# Smaller messages do not show the bandwidth: 256 MiB reaches 90 % of what 16 GiB does on
# 8xH200.
JUDGED_FROM_BYTES = 512 * MIB
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
    time_us_p99: float
    time_us_by_rank: list[float]
    slowest_rank: int
    algbw_gb_s: float
    busbw_gb_s: float | None
    wrong: int
    expected_gb_s: float | None
    judged: str


@frozen
class Hardware:
    """What a published figure is chosen by."""

    device: str
    ranks: int
    hosts: int
    # Whether NCCL may add up in the switch: it can since 2.17, unless its settings forbid it.
    nvls: bool = False
    backend: str = NCCL


class Published(TypedDict):
    """A row of bandwidth_reference.json: busbw of an all_reduce of a large message on one host."""

    name: str
    device: str
    ranks: int
    algorithm: str
    gb_s: float
    condition: str
    source: str


def published(hardware: Hardware) -> Published | None:
    """The figure of the algorithm that NCCL will use."""
    if hardware.hosts > 1 or hardware.backend != NCCL:
        return None
    rows: list[Published] = packaged_json(__package__, "bandwidth_reference.json")["published"]
    fitting = {
        row["algorithm"] == NVLS: row
        for row in reversed(rows)  # the first counts
        if row["ranks"] == hardware.ranks and fnmatchcase(hardware.device, row["device"])
    }
    # With too few GPUs for NVLS the ring's holds.
    return fitting.get(hardware.nvls) or fitting.get(False)


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
    return numbers(nccl or "") >= (2, 17)


@frozen
class Bound:
    """The least busbw that is no finding. of: the rate of which it is a share, and what has that
    rate; source: of this share."""

    finding_id: str
    least_gb_s: float
    gb_s: float
    of: str
    source: str
    advice: str


def bounds(line: Line, hardware: Hardware, limit: WireLimit | None) -> tuple[Bound, ...]:
    """What the line is judged by: a published figure, else the slowest wire. Empty if there is
    neither."""
    size_bytes, row = line["bytes"], published(hardware)
    if row is not None:
        gb_s = row["gb_s"] * wire_limit.share_at(row["gb_s"], size_bytes)
        advice = NVLS_ADVICE if row["algorithm"] == NVLS else ""
        basis = (gb_s, f"what is published of {row['name']}", row["source"], advice)
        return (
            Bound("bandwidth-low", gb_s * BAD, *basis),
            Bound("bandwidth-reduced", gb_s * FINE, *basis),
        )
    if limit is None:
        return ()
    result = []
    for finding_id, wire, bound in (
        ("bandwidth-low", limit.slowest, "fail"),
        ("bandwidth-reduced", limit.warning, "warn"),
    ):
        # The first of its sources; the file has them all.
        source = wire_limit.reference()["kinds"][wire.kind]["source"].split(": ")[0]
        least_gb_s, of = wire.least_gb_s(bound, size_bytes), f"what {wire.name} allow"
        result.append(Bound(finding_id, least_gb_s, wire.gb_s, of, source, WIRE_ADVICE))
    return tuple(result)


def judge_lines(
    lines: Sequence[Line], hardware: Hardware, limit: WireLimit | None = None
) -> list[Finding]:
    """Adds the verdicts to the lines. Returns a finding for each type, about its worst line."""
    findings: list[tuple[float, str, Finding]] = []
    for line in lines:
        limits = bounds(line, hardware, limit)
        line["expected_gb_s"] = None
        line["judged"] = _why_not_judged(line, hardware, limits)
        busbw = line["busbw_gb_s"]
        if line["judged"] or busbw is None:
            continue
        missed = [bound for bound in limits if busbw < bound.least_gb_s]
        bound = (missed or limits)[0]
        remark = f"{busbw / bound.gb_s:.0%} of {bound.of}"
        line["judged"] = remark if missed else f"fine; {remark}"
        if published(hardware):
            line["expected_gb_s"] = round(bound.gb_s, 3)
        if missed:
            message = (
                f"{line['collective']} of {format_bytes(line['bytes'])} in {line['dtype']}: busbw"
                f" {busbw:.4g} GB/s, {remark} ({bound.gb_s:.4g} GB/s); for such a message, healthy"
                f" links reach {bound.least_gb_s:.4g} GB/s and more ({bound.source})"
            )
            ranks = tuple(range(hardware.ranks))
            finding = Finding(bound.finding_id, message, ranks, bound.advice)
            findings.append((busbw / bound.least_gb_s, line["dtype"], finding))
    worst: dict[str, Finding] = {}
    for _, dtype, finding in sorted(findings, key=lambda entry: entry[0]):
        worst.setdefault(dtype, finding)
    return list(worst.values())


def _why_not_judged(line: Line, hardware: Hardware, limits: Sequence[Bound]) -> str:
    """Empty if it is."""
    if line["busbw_gb_s"] is None:
        return ONE_RANK
    if hardware.backend == GLOO:
        return REHEARSAL if hardware.device == CPU else THROUGH_THE_HOST
    if not limits:
        return UNKNOWN
    return TOO_SMALL if line["bytes"] < JUDGED_FROM_BYTES else ""
