"""What `provision lock verify` finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "dependency",
    "constraint",
    "hash",
    "file",
    "channel",
    "twice",
    "both",
    "inputs",
    "gone",
    "changed",
    "silent",
]


@dataclass(frozen=True, kw_only=True)
class LockFinding:
    """One thing that is wrong with a lock."""

    platform: str
    package: str
    kind: Kind
    message: str
