"""Judges the kernel's log: Xids of GPUs, SXids of NVSwitches, and faults of adapters, PCIe, memory and
file servers. Pure: text in, findings out.

Owns kernel_events.json: NVIDIA's catalogs of both and the other lines, with their sources. A number
that the catalogs do not have is unknown, never dropped.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Dict, List, NamedTuple, TypedDict, cast

from ..report.codec import packaged_json
from ..report.findings import Finding
from .gpus import recovery_finding

# "NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, ...", once without PCI; in MIG mode the instance follows.
_NUMBERED = re.compile(
    r"(NVRM:? Xid|SXid)\b:?\s*(?:\((?:PCI:)?([^) ]*)[^)]*\):?)?\s*(\d*)", re.IGNORECASE
)
# "NETIR_LINK_EVT  Fatal   XC0 i0 Link 12", "20034, Non-fatal, Link 29"; not the name of a program.
_SEVERITY = re.compile(r"[A-Z\d,]\s+((?i:Fatal|Non-?fatal))\b")
# Of NVLink 5: the unit, and the first two words in hexadecimal, "(0x004505c6 0x00000000 ...".
_REGISTERS = re.compile(r"\b([A-Z]\w+)\s+(?:Fatal|Non-?fatal)\b.*?\(0x([\da-f]+) 0x([\da-f]+)")
# "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
_RECOVERY_XID, _RECOVERY = "154", re.compile(r"\(([^()]*)\)\s*$")
_BOOT, _DRIVER_START = re.compile(r"Linux version \d"), re.compile(r"NVRM: loading NVIDIA UNIX")
_TIME = re.compile(
    r"\[\s*(\d+\.\d+|[A-Z][a-z]{2} [A-Z\d][^\]]*)\]|(?:^|: )(\d{4}-\d\d-\d\dT[^\s,]*|[A-Z][a-z]{2} +\d+ [\d:]+)"
)


class KernelEvent(TypedDict, total=False):
    """A row of a catalog. severity: `fail`, `warn`, `none`, or `line` if the line states it. action:
    a key of the actions. `fault` (hardware, driver or program) and `source` are for readers.

    Of other lines: finding: its id; words: what every such line has, in lower case; over: the line
    that ends it; least: how many lines make a finding; boot_s: so long after boot it is normal. The
    pattern's first group names the device.
    """

    meaning: str
    severity: str
    action: str
    finding: str
    pattern: str
    over: str
    least: int
    words: str
    boot_s: float


# Of a number that no catalog has.
_UNKNOWN: KernelEvent = {"meaning": "not in the catalog", "severity": "unknown", "action": ""}


class EventCatalog(TypedDict):
    actions: Dict[str, str]
    xids: Dict[str, KernelEvent]
    sxids: Dict[str, KernelEvent]
    words: str
    nvlink5: Dict[str, Dict[str, str]]
    kernel: List[KernelEvent]


class _Key(NamedTuple):
    """What lines have in common that are one finding. kind: Xid, SXid or a rule's pattern."""

    kind: str
    device: str
    number: str = ""
    token: str = ""


@functools.lru_cache(maxsize=1)
def catalog() -> EventCatalog:
    return cast("EventCatalog", packaged_json(__package__, "kernel_events.json"))


def kernel_findings(text: str) -> list[tuple[Finding, str]]:
    """Each finding with the last line that it is about."""
    lines = [line.strip() for line in text.splitlines()]
    events: dict[_Key, list[int]] = {}
    ends: dict[tuple[str, str], int] = {}
    for index, line in enumerate(lines):
        for key, is_end in _classified(line):
            if is_end:
                ends[key.kind, key.device] = index
            else:
                events.setdefault(key, []).append(index)
    findings = []
    for key, indices in events.items():
        finding = _finding(key, len(indices), lines[indices[-1]])
        # An SXid's severity stands in the first of its lines only.
        is_repeated = key.kind == "SXid" and not key.token
        is_repeated &= any(other[:3] == key[:3] and other.token for other in events)
        if finding is None or is_repeated or len(indices) < _event(key).get("least", 1):
            continue
        over = max(
            ends.get((kind, device), -1) for kind in (key.kind, "") for device in (key.device, "")
        )
        if over > indices[-1]:
            if key.number == _RECOVERY_XID:
                continue
            finding = Finding(
                "gpu-event" if key.number else "kernel-event-past",
                f"{finding.message}; it is over since {_time(lines[over])}",
            )
        findings.append((finding, lines[indices[-1]]))
    return findings


def _classified(line: str) -> Iterator[tuple[_Key, bool]]:
    """What a line reports, and whether that is the end of it."""
    if _BOOT.search(line):
        yield _Key("", ""), True
    if _DRIVER_START.search(line):
        yield _Key("Xid", ""), True
        yield _Key("SXid", ""), True
    if match := _NUMBERED.search(line):
        kind = "SXid" if match[1].lower() == "sxid" else "Xid"
        key = _Key(kind, match[2] or "", match[3] or "?")
        token = None
        if key.number == _RECOVERY_XID:
            token = _RECOVERY.search(line)
            # The last action counts.
            yield key._replace(kind=_RECOVERY_XID), True
            key = key._replace(kind=_RECOVERY_XID)
            if token and token[1] == "None":
                yield key._replace(kind="Xid"), True
                return
        elif key.kind == "SXid" or _event(key)["severity"] == "line":
            token = _SEVERITY.search(line)
        yield key._replace(token=token[1] if token else ""), False
        return
    lower = line.lower()
    # Regular expressions are slow, and a storm of errors fills the log.
    if not re.search(catalog()["words"], lower):
        return
    for rule in catalog()["kernel"]:
        if not re.search(rule["words"], lower):
            continue
        match = re.search(rule["pattern"], line)
        end = re.search(rule.get("over") or r"(?!)", line)
        # A time of day has no fraction.
        time = _time(line).strip("[]") if "boot_s" in rule else ""
        if match and not ("." in time and float(time) < rule["boot_s"]):
            yield _Key(rule["pattern"], next(filter(None, match.groups()), "")), False
        elif end:
            yield _Key(rule["pattern"], next(filter(None, end.groups()), "")), True


def _event(key: _Key) -> KernelEvent:
    events = catalog()
    if not key.number:
        return next(rule for rule in events["kernel"] if rule["pattern"] == key.kind)
    return events["sxids" if key.kind == "SXid" else "xids"].get(key.number, _UNKNOWN)


def _finding(key: _Key, count: int, line: str) -> Finding | None:
    """None for what the catalog attributes to programs, or to nothing. line: the last."""
    times = "once" if count == 1 else f"{count} times"
    times += f" on {key.device}" if key.device else ""
    times += f", at {_time(line)}"
    event, actions = _event(key), catalog()["actions"]
    # What NVIDIA's table of NVLink 5 errors advises, by the registers in a line: the sub-code (bits 20
    # to 25 of the first, in both layouts) and the error status.
    decoded, registers = "", _REGISTERS.search(line)
    if registers:
        sub_code, status = int(registers[2], 16) >> 20 & 0x3F, int(registers[3], 16)
        decoded = catalog()["nvlink5"].get(registers[1], {}).get(f"{sub_code}/{status:x}", "")
    advice = actions.get(decoded or event["action"], "")
    if not key.number:
        return Finding(event["finding"], f"{event['meaning']} {times}", advice=advice)
    if key.kind == _RECOVERY_XID:
        finding = recovery_finding(key.token, "a GPU")
        advice = finding.advice if finding else ""
        return Finding(
            "gpu-xid" if advice else "gpu-xid-unknown",
            f"Xid {key.number} (the driver asks for: {key.token or 'unreadable'}) {times}",
            advice=advice,
        )
    severity = event["severity"]
    if key.token or severity == "line":
        severity = {"fatal": "fail", "": "unknown"}.get(key.token.lower(), "warn")
    if severity == "none":
        return None
    facts = ", ".join(filter(None, (key.token, event["meaning"])))
    message = f"{key.kind} {key.number} ({facts}) {times}"
    if severity == "unknown":
        return Finding("gpu-xid-unknown", message)
    if severity == "warn":
        # The action of an event that states its severity is that of a fatal one.
        is_stated = key.token and not decoded
        return Finding("gpu-event", message, advice=actions["support"] if is_stated else advice)
    return Finding("gpu-xid" if key.kind == "Xid" else "nvswitch-sxid", message, advice=advice)


def _time(line: str) -> str:
    """As the line states it: seconds after boot, or a time of day."""
    match = _TIME.search(line)
    return f"[{next(filter(None, match.groups()))}]" if match else "an unknown time"
