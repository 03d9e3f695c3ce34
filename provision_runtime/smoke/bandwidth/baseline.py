"""A run's own figures, kept to compare later runs with. Pure but for reading and writing the file.

What is judged: messages from 1 MiB on. Smaller ones are kept and shown: their times are the scheduler's more than the
network's.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ... import fs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SCHEMA = 1
KIND = "smoke-baseline"
JUDGED_FROM_BYTES = 1 << 20
# SuperBench's rule: more than 5 % below one's own baseline is a defect.
WORST_ON_GPU = 1.05
# Gloo on CPUs is at the scheduler's mercy; less than this says nothing.
WORST_ON_CPU = 3.0
KEPT = ("collective", "dtype", "bytes", "time_us_max", "time_us_min", "busbw_gb_s")
IDENTITY = ("backend", "device", "ranks", "hosts", "torch")


class BaselineUnreadable(ValueError):
    """The file is no baseline."""


@dataclass(frozen=True)
class Identity:
    """Runs that differ in any of these are not compared. `nccl` is only told: a new NCCL is a reason to compare."""

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
    was_us: float
    is_us: float

    @property
    def ratio(self) -> float:
        return self.is_us / self.was_us


def document(identity: Identity, rows: Sequence[Mapping[str, Any]]) -> str:
    kept = [{name: row[name] for name in KEPT} for row in rows]
    return (
        json.dumps(
            {"schema": SCHEMA, "kind": KIND, "identity": asdict(identity), "rows": kept}, indent=2
        )
        + "\n"
    )


def save(path: Path, identity: Identity, rows: Sequence[Mapping[str, Any]]) -> None:
    fs.atomic_write(path, document(identity, rows).encode())


def load(path: Path) -> dict[str, Any]:
    """Raises BaselineUnreadable."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise BaselineUnreadable(
            f"there is no baseline at {path}: make one with save on a machine that is well"
        ) from error
    except (OSError, ValueError) as error:
        raise BaselineUnreadable(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict) or (found.get("schema"), found.get("kind")) != (SCHEMA, KIND):
        raise BaselineUnreadable(f"{path} is no baseline of schema {SCHEMA}")
    if not isinstance(found.get("identity"), dict) or not _are_rows(found.get("rows")):
        raise BaselineUnreadable(
            f"{path} is damaged: a baseline has an identity, and rows of {', '.join(KEPT)}"
        )
    return found


def _are_rows(found: Any) -> bool:
    return isinstance(found, list) and all(
        isinstance(row, dict) and all(name in row for name in KEPT) for row in found
    )


def unlike(found: Mapping[str, Any], identity: Identity) -> list[str]:
    """In what the baseline is another machine or environment, in words."""
    was, now = found["identity"], asdict(identity)
    return [
        f"{name} was {was.get(name)}, is {now[name]}"
        for name in IDENTITY
        if was.get(name) != now[name]
    ]


def pairs(
    found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Then and now, of what was measured both times."""
    then = {(row["collective"], row["dtype"], row["bytes"]): row for row in found["rows"]}
    keys = [(row["collective"], row["dtype"], row["bytes"]) for row in rows]
    return [(then[key], row) for key, row in zip(keys, rows) if key in then]


def regressions(
    found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], on_gpu: bool
) -> list[Regression]:
    """On a GPU by the median; on CPUs by the best iteration, which other work on the machine disturbs least."""
    which, worst = ("time_us_max", WORST_ON_GPU) if on_gpu else ("time_us_min", WORST_ON_CPU)
    compared = [
        Regression(f"{now['collective']} {now['dtype']}", now["bytes"], then[which], now[which])
        for then, now in pairs(found, rows)
        if now["bytes"] >= JUDGED_FROM_BYTES
    ]
    return [entry for entry in compared if entry.ratio > worst]
