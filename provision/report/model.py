"""The page as plain values: `--json` prints them, the template renders them.

Field names are the keys of `--json`.
"""

from __future__ import annotations

from dataclasses import dataclass

from provision.report.measures import MeasuredCurve, RankTable
from provision_runtime.report.model import ReportedFinding

# A fact as text, or a list of texts.
Fact = str | tuple[str, ...]


@dataclass(frozen=True)
class ReasonedChoice:
    """A choice, pin or warning, with its reason and the source of that reason. locked: the version
    of a pin in the lock."""

    what: str
    value: str
    reason: str
    source: str
    locked: str = ""


@dataclass(frozen=True, kw_only=True)
class EnvironmentRecord:
    """An environment, from its passports.

    Passports of the same lock and request are one environment with several files. outdated: why
    that is not the environment as it is now; empty if it is.
    """

    name: str
    files: tuple[str, ...]
    made_by: str
    written_at: str
    request: dict[str, str]
    choices: tuple[ReasonedChoice, ...]
    warnings: tuple[ReasonedChoice, ...]
    pins: tuple[ReasonedChoice, ...]
    products: dict[str, str]
    outdated: str


@dataclass(frozen=True)
class PhaseResult:
    """One phase of a run. verdict: also `skipped`, for a phase that the user left out."""

    name: str
    verdict: str
    duration_s: float
    message: str
    findings: tuple[ReportedFinding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run of the smoke test."""

    label: str
    host: str
    verdict: str
    setting: dict[str, str]  # when, on what, how much
    notes: tuple[str, ...]
    phases: tuple[PhaseResult, ...]
    facts: dict[str, Fact]  # everything that the report says about the environment


@dataclass(frozen=True, kw_only=True)
class TestedNode:
    """One node of a smoke test over nodes. remark: its findings and what went wrong."""

    node: str
    host: str
    state: str
    remark: str


@dataclass(frozen=True, kw_only=True)
class NodesTest:
    """The latest smoke test of an environment over nodes. on: the nodes, as --on named them."""

    environment: str
    on: str
    started_at: str
    verdict: str
    nodes: tuple[TestedNode, ...]


@dataclass(frozen=True, kw_only=True)
class Page:
    """The whole page."""

    title: str
    verdict: str
    environments: tuple[EnvironmentRecord, ...]
    measurements: tuple[Measurement, ...]
    curves: tuple[MeasuredCurve, ...]
    ranks: tuple[RankTable, ...]
    missing: tuple[str, ...]
    node_tests: tuple[NodesTest, ...] = ()
