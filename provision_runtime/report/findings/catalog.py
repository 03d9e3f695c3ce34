"""All areas of the registry as one, and a fault that ranks or a host observed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from ...comm.rank_names import name_ranks
from .. import model
from ..codec import packaged_json
from . import facts, failures, scripts, smoke
from .rule import Rule

# Phase of the smoke test -> its findings.
BY_PHASE: dict[str, dict[str, Rule]] = {
    "any": smoke.RUN,
    "facts": facts.FACTS,
    "rendezvous": smoke.RENDEZVOUS,
    "barrier": smoke.BARRIER,
    "collectives": smoke.COLLECTIVES,
    "compute": smoke.COMPUTE,
    "ddp": smoke.DDP,
    "filesystem": smoke.FILESYSTEM,
    "checkpoint": smoke.CHECKPOINT,
}
# What only `doctor` looks for.
_DOCTOR = packaged_json(__package__, "doctor.json")
BY_AREA: dict[str, dict[str, Rule]] = {
    area: {id: Rule(**row) for id, row in rules.items()} for area, rules in _DOCTOR.items()
}
BY_AREA["scripts"] = scripts.SCRIPTS

CATALOG: dict[str, Rule] = {}
for _rules in (*BY_PHASE.values(), *BY_AREA.values(), failures.FAILURES):
    CATALOG.update(_rules)


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
