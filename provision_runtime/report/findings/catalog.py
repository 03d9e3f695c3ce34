"""Reads the registry of findings; and a fault that ranks or a host observed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Tuple

from ...comm.rank_names import name_ranks
from .. import model
from ..codec import packaged_json
from ..model import FAIL as FAIL
from ..model import UNKNOWN as UNKNOWN
from ..model import WARN as WARN

# How long the path of the folder for temporary files may be, in bytes: a socket's path has at most
# 107 (unix(7)), and multiprocessing adds `/pymp-XXXXXXXX/listener-XXXXXXXX`. Later
# releases of Python 3.13, and 3.14, take /tmp instead of a longer path.
TMPDIR_LENGTH = 107 - 32


@dataclass(frozen=True)
class Rule:
    """What the registry says about a finding, whoever reports it.

    verdict: fail, warn or unknown. breaks: what users will see. command: what mends it, or shows
    more; `CAPITALS` stand for what only the user knows. source: where the fault, or the threshold,
    is documented."""

    verdict: str
    meaning: str
    advice: str
    breaks: str = ""
    command: str = ""
    source: str = ""


Rules = Dict[str, Rule]
_DATA = packaged_json(__package__, "findings.json")


def _read_rules(area: dict[str, dict[str, str]]) -> Rules:
    return {id: Rule(**row) for id, row in area.items()}


# Of the phases of the smoke test; of what only `doctor` looks for; and why jobs fail or hang.
BY_PHASE = {phase: _read_rules(area) for phase, area in _DATA["phases"].items()}
BY_AREA = {name: _read_rules(area) for name, area in _DATA["doctor"].items()}
JOBS = _read_rules(_DATA["jobs"])
CATALOG: Rules = {}
for _rules in (*BY_PHASE.values(), *BY_AREA.values(), JOBS):
    CATALOG.update(_rules)
# What programs print, by its finding. The first that matches counts.
ERRORS: dict[str, str] = _DATA["errors"]


def known_error(text: str) -> str:
    """The id of an error by what a program printed; empty if it is not known."""
    return next((id for id, pattern in ERRORS.items() if re.search(pattern, text)), "")


def has_lost_peer(text: str) -> bool:
    """Whether an error only reports that another rank, or a node, has ended or does not respond."""
    return re.search(_DATA["lost_peer"], text) is not None


@dataclass(frozen=True)
class Finding:
    """Something that is wrong: an id of the catalog, what happened, and on which ranks.

    Without ranks, it is about the rank or host that reports it. Without advice, the catalog's
    holds.
    """

    id: str
    message: str
    ranks: Tuple[int, ...] = ()
    advice: str = ""

    @property
    def verdict(self) -> str:
        return CATALOG[self.id].verdict

    def reported(self) -> model.ReportedFinding:
        advice = self.advice or CATALOG[self.id].advice
        return model.ReportedFinding(self.id, self.verdict, list(self.ranks), self.message, advice)

    def __str__(self) -> str:
        return f"{name_ranks(self.ranks)}: {self.message}" if self.ranks else self.message
