"""Small valid passports and smoke reports for tests, with changes where a test asks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PASSPORT = Path(__file__).parent / "data" / "passport.json"
MIB = 1 << 20


def finding(**changes: Any) -> dict[str, Any]:
    document = {
        "id": "wrong-value",
        "verdict": "fail",
        "ranks": [1],
        "message": "1 wrong of 2 at 8 B",
        "advice": "check its memory",
    }
    return {**document, **changes}


def phase(name: str = "barrier", **changes: Any) -> dict[str, Any]:
    document = {
        "name": name,
        "verdict": "pass",
        "duration_s": 0.06,
        "message": "200 barriers",
        "data": {},
        "findings": [],
    }
    return {**document, **changes}


def row(size: int, *, busbw: float | None = 1.5, ranks: int = 2, **changes: Any) -> dict[str, Any]:
    time_us = 100 + size / 1000
    measured = {
        "collective": "all_reduce",
        "dtype": "float32",
        "bytes": size,
        "time_us_max": time_us,
        "time_us_p99": 2 * time_us,
        "algbw_gb_s": busbw or 1.0,
        "busbw_gb_s": busbw,
        "slowest_rank": ranks - 1,
        "time_us_by_rank": [time_us] * ranks,
    }
    return {**measured, **changes}


def collectives(*rows: dict[str, Any], **data: Any) -> dict[str, Any]:
    return phase("collectives", message="exact", data={"rows": list(rows), **data})


def report(*phases: dict[str, Any], **changes: Any) -> dict[str, Any]:
    verdicts = [phase["verdict"] for phase in phases]
    about = {
        "schema": 2,
        "kind": "smoke",
        "verdict": next(
            (verdict for verdict in ("fail", "unknown", "warn", "pass") if verdict in verdicts),
            "unknown",
        ),
        "started_at": "2026-01-01T00:00:00Z",
        "duration_s": 12.5,
        "backend": "gloo",
        "device": "cpu",
        "world_size": 2,
        "hosts": ["node1"],
        "profile": "quick",
        "skipped": [],
        "facts": {
            "host": "node1",
            "torch": {
                "version": "2.3.1+cu121",
                "devices": [{"name": "H100"}],
                "arch_list": ["sm_80", "sm_90"],
            },
        },
        "phases": list(phases),
    }
    return {**about, **changes}


def passport(*reports: dict[str, Any], host: str = "node1", **changes: Any) -> dict[str, Any]:
    """With the reports as those of the prefix and the image, in this order."""
    smoke = {
        place: {
            "verdict": smoke_report["verdict"],
            "measured_on": {"host": host, "machine": "x86_64"},
            "report": smoke_report,
        }
        for place, smoke_report in zip(("prefix", "image"), reports)
    }
    return {**json.loads(PASSPORT.read_text()), "smoke": smoke, **changes}


def write(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path
