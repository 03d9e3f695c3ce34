"""The registry of findings: every fault that the smoke test, `doctor`, `why` and a job's log can
report, how bad it is, what it means, and what to do; and the errors of programs that are known.

The ids are part of the reports' contract: scripts and dashboards act on them. The rows are in
findings.json, by the smoke test's phase or by doctor's area. docs/findings.md is generated from them;
a check compares the two.
"""

from __future__ import annotations

import re
from typing import List, Mapping, Tuple, TypedDict

from ..comm.rank_names import name_ranks
from ..dataclass import frozen
from . import model
from .codec import packaged_json

# How long the path of the folder for temporary files may be, in bytes: a socket's path has at most
# 107 (unix(7)), and multiprocessing adds `/pymp-XXXXXXXX/listener-XXXXXXXX`. Later
# releases of Python 3.13, and 3.14, take /tmp instead of a longer path.
TMPDIR_LENGTH = 107 - 32
_REGISTRY = packaged_json(__package__, "findings.json")


@frozen
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


class ProbeRow(TypedDict, total=False):
    """A probe of doctor. ids: all findings that it can report."""

    ids: List[str]
    deadline_s: float
    needs_prefix: bool


def _rules(rows: Mapping[str, Mapping[str, str]]) -> dict[str, Rule]:
    return {id: Rule(**row) for id, row in rows.items()}


# Phase of the smoke test -> its findings.
BY_PHASE = {phase: _rules(rows) for phase, rows in _REGISTRY["phases"].items()}
# What only `doctor` looks for.
BY_AREA = {area: _rules(rows) for area, rows in _REGISTRY["areas"].items()}
# Why jobs fail or hang.
JOBS = _rules(_REGISTRY["jobs"])
# What programs print, by its finding. The first that matches counts.
ERRORS: dict[str, str] = _REGISTRY["errors"]
# By the names of doctor's probes.
PROBES: dict[str, ProbeRow] = _REGISTRY["probes"]
# Patterns of errors when torch is imported, and the advice for each. All were reported by users of
# torch; the first match counts.
TORCH_HINTS: dict[str, str] = _REGISTRY["torch_hints"]
CATALOG: dict[str, Rule] = {}
for _group in (*BY_PHASE.values(), *BY_AREA.values(), JOBS):
    CATALOG.update(_group)
# Findings about the hardware or the network of a node, for which taking it out of service can be
# right. Those about its environment, its settings or a shared folder are not: they are mended
# otherwise, or are not the node's.
NODE_FAULTS = frozenset(_REGISTRY["node_faults"])
# Warnings that something works, but slower than it should. With --set strict=true they are failures.
PERFORMANCE_WARNINGS = frozenset(_REGISTRY["performance_warnings"])


def known_error(text: str) -> str:
    """The id of an error by what a program printed; empty if it is not known."""
    return next((id for id, pattern in ERRORS.items() if re.search(pattern, text)), "")


def has_lost_peer(text: str) -> bool:
    """Whether an error only reports that another rank, or a node, has ended or does not respond."""
    return re.search(_REGISTRY["lost_peer"], text) is not None and known_error(text) != "port-busy"


@frozen
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
