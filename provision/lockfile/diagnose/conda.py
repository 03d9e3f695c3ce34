"""Why conda's solver found no answer: which requirement, with its reason and source, conflicts with
which fact or record, and what to change.

The channels' records show what is missing. Solving again with fewer requirements finds those that
conflict; the solver's own output about these alone says how.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from provision.adapters import conda
from provision.adapters.conda import ChannelRecord, ChannelRecords
from provision.core.errors import ProvisionError, Unsolvable
from provision.core.platforms import PLATFORMS
from provision.lockfile.diagnose.unsat_core import (
    Budget,
    OutOfTime,
    PinReasons,
    describe_option,
    minimal,
    suggestions,
)

# Seconds that a person waits for the cause.
BUDGET_S = 10.0
MAX_SHOWN = 6
MAX_LINES = 16
# The solver draws a tree (py-rattler 0.28).
SOLVER_PREFIX = "Cannot solve the request because of: "
TREE = re.compile(r"[│├└─]")
NEWEST = "9999"  # of a virtual package: newer than any package requires
DETAILS_ADVICE = "-v shows the solver's own output."


class Term(NamedTuple):
    """One requirement: a spec of the request or a bound on it."""

    is_bound: bool
    text: str


class SolveDiagnosis(NamedTuple):
    message: str
    advice: str


def explain(
    error: Unsolvable, request: conda.SolveRequest, solver: conda.Solver, reasons: PinReasons
) -> Unsolvable:
    """The same failure, with its cause if the budget suffices to find it."""
    try:
        diagnosis = _CondaConflict(request, solver, reasons, Budget(BUDGET_S)).diagnose()
    except (OutOfTime, ProvisionError):
        return error
    return Unsolvable(
        f"There is no environment for {request.platform}: {diagnosis.message}",
        advice=f"{diagnosis.advice} {DETAILS_ADVICE}",
        details=error.details,
    )


class _CondaConflict:
    """One request that cannot be solved, and the records of its channels."""

    def __init__(
        self, request: conda.SolveRequest, solver: conda.Solver, reasons: PinReasons, budget: Budget
    ) -> None:
        self.request, self.solver, self.reasons, self.budget = request, solver, reasons, budget
        self.records = ChannelRecords(solver, request)

    def diagnose(self) -> SolveDiagnosis:
        return self._missing_records() or self._conflict()

    def _request(self, terms: Sequence[Term]) -> conda.SolveRequest:
        return dataclasses.replace(
            self.request,
            specs=tuple(term.text for term in terms if not term.is_bound),
            bounds=tuple(term.text for term in terms if term.is_bound),
        )

    def _is_solvable(self, terms: Sequence[Term], newer: str = "") -> bool:
        """newer: a virtual package of which the machine has the newest version."""
        self.budget.check()
        request = self._request(terms)
        if newer:
            machine = {**dict(request.virtual_packages), newer: NEWEST}
            request = dataclasses.replace(request, virtual_packages=tuple(machine.items()))
        return self.solver.is_solvable(request)

    # Requirements that no record satisfies.

    def _missing_records(self) -> SolveDiagnosis | None:
        missing = [spec for spec in self.request.specs if not self._usable_records(spec)]
        if not missing:
            return None
        specs_by_alternative: dict[str, list[str]] = {}
        for spec in missing:
            specs_by_alternative.setdefault(self._alternative(spec), []).append(spec)
        sentences = []
        for alternative, specs in specs_by_alternative.items():
            sentences.append(f"no record matches {self.reasons.describe(specs)}: {alternative}")
        advice = "Name a channel that has it with --channel, or request what is available."
        options = dict.fromkeys(self.reasons.option(spec) for spec in missing)
        texts = [describe_option(option) for option in options if option is not None]
        if texts:
            advice += f" Or use {' and '.join(texts)}."
        return SolveDiagnosis(f"{'; '.join(sentences)}.", advice)

    def _usable_records(self, spec: str) -> list[ChannelRecord]:
        """The records that the solver may choose: those of the first channel that has any."""
        visible = [record for record in self.records.find(spec) if record.visible]
        return [record for record in visible if record.channel == visible[0].channel]

    def _alternative(self, spec: str) -> str:
        """What the channels have that comes close to a requirement."""
        channel = spec.rpartition("::")[0]
        channels = [channel] if channel else list(self.request.channels)
        have = f"{' and '.join(channels)} {'has' if len(channels) == 1 else 'have'}"
        requested_urls = [conda.channel_url(name) for name in self.request.channels]
        if channel and conda.channel_url(channel) not in requested_urls:
            listing = ", ".join(self.request.channels)
            return f"{channel} is not among the channels of environment.yml ({listing})"
        hidden = [record for record in self.records.find(spec) if not record.visible]
        if hidden:
            dates = sorted(record.date for record in hidden if record.date)
            since = f"since {dates[0]}" if dates else "without a date"
            return f"{have} it {since}, which --as-of {self.request.as_of} hides"
        any_version = self.records.find(conda.without_version(spec))
        if not any_version:
            return self._package_elsewhere(spec, channel, channels, have)
        same_version = self.records.find(conda.without_build(spec))
        if same_version:
            builds = _listed(record.build for record in same_version)
            return f"{have} this version with the builds {builds}"
        return f"{have} {any_version[0].name} {_listed(_nearest_versions(spec, any_version))}"

    def _package_elsewhere(
        self, spec: str, channel: str, channels: Sequence[str], have: str
    ) -> str:
        """Where to find a package that these channels do not have for the platform."""
        platform, name = self.request.platform, conda.spec_name(spec)
        if not any(self.records.package_names(listed, platform) for listed in channels):
            return f"{have} no packages at all for {platform}"
        if channel:
            other_channels = {record.channel for record in self.records.find(name)}
            if other_channels:
                return f"{channel} has no {name}; {', '.join(sorted(other_channels))} has it"
        versionless = conda.without_version(spec)
        platforms = [other for other in PLATFORMS if self.records.find(versionless, other)]
        if platforms:
            return f"{have} {name} only for {', '.join(platforms)}"
        text = f"{have} no package of that name"
        similar = self.records.similar_names(name)
        if similar:
            text += f"; similar names: {', '.join(similar)}"
        return text

    # Requirements that conflict.

    def _conflict(self) -> SolveDiagnosis:
        terms = [Term(False, text) for text in self.request.specs]
        terms += [Term(True, text) for text in self.request.bounds]
        by_weight = sorted(terms, key=lambda term: self.reasons.weight(term.text))
        core = minimal(by_weight, self._is_solvable)
        texts = [term.text for term in core]
        described = self.reasons.describe(texts)
        chain = self._chain(core)
        needed = re.search(r"(__\w+ [^\n]*), for which no candidates", chain)
        if needed and self._is_solvable(core, newer=needed[1].split()[0]):
            name, requirement = needed[1].split()[0], needed[1].removesuffix(" *")
            offer = dict(self.request.virtual_packages).get(name, "none")
            return SolveDiagnosis(
                f"{described} requires {requirement}, and {offer} is assumed "
                f"(virtual-packages.yml, {self.request.platform}).",
                "Assume a machine that offers it (--cuda, --glibc), or request a build that "
                "needs less.",
            )
        if len(texts) == 1:
            verb = "cannot be installed"
        elif len({conda.spec_name(text) for text in texts}) == 1:
            verb = "exclude each other"
        else:
            verb = "cannot be installed together"
        return SolveDiagnosis(f"{described} {verb}:\n{chain}", self._advice(terms, core))

    def _chain(self, core: Sequence[Term]) -> str:
        """How the solver comes to its conflict, from these requirements alone."""
        try:
            self.solver.solve(self._request(core))
        except Unsolvable as error:
            lines = error.details.removeprefix(SOLVER_PREFIX).splitlines()
            chain = [f"  {TREE.sub(' ', line)}" for line in lines[:MAX_LINES] if line.strip()]
            return "\n".join([*chain, "  ..."] if len(lines) > MAX_LINES else chain)
        return ""

    def _advice(self, terms: Sequence[Term], core: Sequence[Term]) -> str:
        """What else could be requested, or left out."""
        changes = suggestions(
            [term.text for term in terms],
            [term.text for term in core],
            self.reasons,
            self._other_version,
            lambda rest: self._is_solvable([term for term in terms if term.text in rest]),
        )
        if changes:
            return f"Without other changes, {', or '.join(changes)}."
        leave_out = ", or leave one of them out" if len(core) > 1 else ""
        return f"Request another combination (provision matrix lists them){leave_out}."

    def _other_version(self, spec: str) -> str | None:
        """The package and version that solve the request in place of this spec."""
        self.budget.check()
        versionless, name = conda.without_version(spec), conda.spec_name(spec)
        specs = tuple(versionless if text == spec else text for text in self.request.specs)
        if specs == self.request.specs:
            return None
        try:
            packages = self.solver.solve(dataclasses.replace(self.request, specs=specs))
        except Unsolvable:
            return None
        return next(f"{name} {package.version}" for package in packages if package.name == name)


def _listed(texts: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(texts))
    text = ", ".join(distinct[:MAX_SHOWN])
    if len(distinct) > MAX_SHOWN:
        text += f" and {len(distinct) - MAX_SHOWN} others"
    return text


def _nearest_versions(spec: str, records: Sequence[ChannelRecord]) -> list[str]:
    """The versions of a package, nearest to the requested one first."""
    requested = _numbers(re.split(r"[=<>!~\s]+", spec, maxsplit=1)[-1])

    def distance(version: str) -> list[int]:
        pairs = itertools.zip_longest(requested, _numbers(version), fillvalue=0)
        return [abs(left - right) for left, right in pairs]

    return sorted({record.version for record in records}, key=distance)


def _numbers(version: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", version)]
