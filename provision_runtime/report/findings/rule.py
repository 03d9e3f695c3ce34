"""What the registry says about a finding, whoever reports it."""

from __future__ import annotations

from dataclasses import dataclass

from ..model import FAIL as FAIL
from ..model import UNKNOWN as UNKNOWN
from ..model import WARN as WARN


@dataclass(frozen=True)
class Rule:
    """verdict: fail, warn or unknown. breaks: what users will see. command: what mends it, or shows
    more; `CAPITALS` stand for what only the user knows. source: where the fault, or the threshold,
    is documented."""

    verdict: str
    meaning: str
    advice: str
    breaks: str = ""
    command: str = ""
    source: str = ""
