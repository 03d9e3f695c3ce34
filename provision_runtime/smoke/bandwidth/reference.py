"""What busbw others measured: curves over the size of the message, per GPU, number of ranks, hosts, fabric and collective.

Owns expected.json, which is shipped, and the format of `--expect FILE`, which is the same. Pure but for reading the file.
The numbers are published ones; each names its source.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SHIPPED = Path(__file__).with_name("reference.json")
SCHEMA = 1
MIB, GIB = 1 << 20, 1 << 30
UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": MIB, "GIB": GIB}
SIZE = re.compile(r"(\d+)\s*([a-zA-Z]*)$")
# Below, a message is too small to say something of bandwidth: 256 MiB reaches 90 % of what 16 GiB does on 8xH200.
JUDGED_FROM_BYTES = 512 * MIB
ANY = "*"
NCCL, GLOO = BACKENDS = ("nccl", "gloo")
NVLS = "NVLS"
CPU = "cpu"
NEEDED = ("device", "ranks", "points")
WORDS = ("backend", "fabric", "algorithm", "collective", "condition", "source")
KEYS = (*NEEDED, "hosts", "from", *WORDS)


class ExpectedUnreadable(ValueError):
    """The file is not one of expected curves; the text says where and what would be right."""


@dataclass(frozen=True)
class Hardware:
    """What a curve is chosen by. `fabric` is the driver of the network cards between hosts, as `efa` or `mlx5_core`."""

    device: str
    ranks: int
    hosts: int
    fabric: str = ""
    # Whether NCCL may add up in the switch: it can since 2.17, unless it was told not to.
    nvls: bool = False
    backend: str = NCCL


@dataclass(frozen=True)
class Curve:
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
        return (
            (self.ranks, self.hosts, self.collective)
            == (hardware.ranks, hardware.hosts, collective)
            and hardware.backend == (self.backend or (GLOO if hardware.device == CPU else NCCL))
            and fnmatchcase(hardware.device, self.device)
            and fnmatchcase(hardware.fabric, self.fabric)
        )

    def at(self, size_bytes: int) -> float:
        """Between two points by the logarithm of the size; before the first and after the last as there."""
        before = [point for point in self.points if point[0] <= size_bytes]
        after = [point for point in self.points if point[0] >= size_bytes]
        if not before or not after:
            return (after or before[-1:])[0][1]
        (low, low_gb_s), (high, high_gb_s) = before[-1], after[0]
        if low == high:
            return low_gb_s
        share = math.log(size_bytes / low) / math.log(high / low)
        return low_gb_s + share * (high_gb_s - low_gb_s)

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.device, f"x {self.ranks}", self.algorithm)))


@dataclass(frozen=True)
class Known:
    """All of a file. `wires`: what one GPU's links carry one way, by device."""

    curves: tuple[Curve, ...]
    wires: tuple[tuple[str, float], ...] = ()

    def curve(self, hardware: Hardware, collective: str) -> Curve | None:
        """Of several that fit, that of the algorithm which NCCL will take."""
        fitting = [curve for curve in self.curves if curve.fits(hardware, collective)]
        chosen = [curve for curve in fitting if (curve.algorithm == NVLS) == hardware.nvls]
        # Where the switch could help and no curve says so, the others hold (all_gather, or too few GPUs).
        others = fitting if hardware.nvls else []
        return next(iter([*chosen, *others]), None)

    def wire_gb_s(self, device: str) -> float | None:
        return next((rate for pattern, rate in self.wires if fnmatchcase(device, pattern)), None)


def load(path: Path = SHIPPED) -> Known:
    """Raises ExpectedUnreadable."""
    try:
        return parse(json.loads(path.read_text()))
    except OSError as error:
        raise ExpectedUnreadable(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ExpectedUnreadable(f"{path}: {error}") from error


def parse(document: Any) -> Known:
    if (
        not isinstance(document, dict)
        or document.get("schema") != SCHEMA
        or not isinstance(document.get("curves"), list)
    ):
        raise ValueError(f'an object with "schema": {SCHEMA} and a list "curves" is needed')
    wires = document.get("wires", {})
    return Known(
        tuple(
            _curve(entry, f"curve {number}") for number, entry in enumerate(document["curves"], 1)
        ),
        tuple((device, _positive(rate, f"wires of {device}")) for device, rate in wires.items()),
    )


def size_bytes(text: str) -> int:
    found = SIZE.match(text.strip())
    unit = UNITS.get(found[2].upper()) if found else None
    if not found or unit is None or not int(found[1]):
        raise ValueError(f"{text!r} is not a size; write 512MiB, 16GiB or a number of bytes")
    return int(found[1]) * unit


def _curve(entry: Any, where: str) -> Curve:
    if not isinstance(entry, dict):
        raise ValueError(f"{where} is not an object")
    foreign = [key for key in entry if key not in KEYS]
    if foreign:
        raise ValueError(f"{where}: no such key: {foreign[0]!r}; there are {', '.join(KEYS)}")
    missing = [key for key in NEEDED if key not in entry]
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} is missing")
    words = {key: _text(entry[key], f"{where}, {key}") for key in WORDS if key in entry}
    if words.get("backend", NCCL) not in BACKENDS:
        raise ValueError(f"{where}, backend: {words['backend']!r} is neither nccl nor gloo")
    return Curve(
        device=_text(entry["device"], f"{where}, device"),
        ranks=_count(entry["ranks"], f"{where}, ranks"),
        hosts=_count(entry.get("hosts", 1), f"{where}, hosts"),
        points=_points(entry["points"], where),
        from_bytes=size_bytes(str(entry.get("from", JUDGED_FROM_BYTES))),
        **words,
    )


def _points(given: Any, where: str) -> tuple[tuple[int, float], ...]:
    if not isinstance(given, dict) or not given:
        raise ValueError(
            f'{where}, points: an object of sizes and GB/s is needed, as {{"512MiB": 450.3}}'
        )
    return tuple(
        sorted(
            (size_bytes(size), _positive(rate, f"{where} at {size}"))
            for size, rate in given.items()
        )
    )


def _text(given: Any, where: str) -> str:
    if not isinstance(given, str):
        raise ValueError(f"{where}: {given!r} is not a text")
    return given


def _count(given: Any, where: str) -> int:
    if type(given) is not int or given < 1:
        raise ValueError(f"{where}: {given!r} is not a number from 1 on")
    return given


def _positive(given: Any, where: str) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < math.inf:
        raise ValueError(f"{where}: {given!r} is not a number of GB/s above 0")
    return float(given)


def with_nvls(environment: Mapping[str, str], nccl: str | None) -> bool:
    """Whether NCCL of this version may use NVLS under these variables."""
    if environment.get("NCCL_NVLS_ENABLE") == "0":
        return False
    if NVLS not in environment.get("NCCL_ALGO", NVLS).upper():
        return False
    return _release(nccl) >= (2, 17)


def _release(version: str | None) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else (0, 0)
