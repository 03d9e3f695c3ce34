"""Finds this user's ranks on this machine, and reads what each of them does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from .model import Snapshot


@dataclass(frozen=True)
class Selection:
    """Which ranks: those of a process and its children, those that work in a folder or below it,
    those of an environment's prefix, those of a job (MASTER_ADDR:MASTER_PORT). All by default."""

    pid: Optional[int] = None
    folder: str = ""
    prefix: str = ""
    job: str = ""


def collect(
    selection: Selection, *, observed_s: float = 2.0, timeout_s: float = 8.0, raw: str = ""
) -> Snapshot:
    """What the selected ranks do.

    Args:
        observed_s: seconds between two looks, by which a rank that works is told from one that waits.
        timeout_s: seconds for all; ranks that were not read by then are unknown.
        raw: a folder for the stacks and dumps as the tools print them.
    """
    raise NotImplementedError
