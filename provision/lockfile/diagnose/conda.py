"""Why conda's solver found no answer: which requirement, with its reason and source, conflicts with
which fact or record, and what to change.

The channels' records show what is missing. Solving again with fewer requirements finds those that
conflict; the solver's own output about these alone says how.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from provision.adapters import conda
from provision.adapters.conda import ChannelRecord, ChannelRecords
from provision.catalog import version_key
from provision.core.errors import ProvisionError, Unsolvable
from provision.core.platforms import PLATFORMS
from provision.lockfile.diagnose.unsat_core import (
    Budget,
    OutOfTime,
    PinReasons,
    minimal,
    nearest_pythons,
    suggestions,
    undiagnosed,
)

# CPU seconds.
BUDGET_S = 10.0
MAX_SHOWN = 6
MAX_LINES = 16
# The solver draws a tree (py-rattler 0.28).
SOLVER_PREFIX = "Cannot solve the request because of: "
TREE = re.compile(r"[│├└─]")
PARENT = re.compile(r"( *)(\S+) (.+) would require")
UNMET = re.compile(r"( *)(__\w+) (.+), for which no candidates were found")
NEWEST = "9999"  # of a virtual package: newer than any package requires
PYTHON_PIN = re.compile(r"python=\d+\.\d+")
DETAILS_ADVICE = "-v shows the solver's own output."


class Term(NamedTuple):
    """One requirement: a spec of the request or a bound on it."""

    is_bound: bool
    text: str


class MachineNeed(NamedTuple):
    """What a package of the solver's chain requires of the machine."""

    package: str
    versions: str  # the releases with this requirement
    virtual: str
    spec: str

    @property
    def version(self) -> str:
        """The version that meets it, or one newer than all if it names none."""
        match = re.search(r"\d+(\.\d+)*", self.spec)
        return match[0] if match else NEWEST


def explain(
    error: Unsolvable, request: conda.SolveRequest, solver: conda.Solver, reasons: PinReasons
) -> Unsolvable:
    """The same failure, with its cause if the budget suffices to find it."""
    try:
        conflict = _CondaConflict(request, solver, reasons, Budget(BUDGET_S))
        message, advice = conflict.missing_records() or conflict.conflict()
    except (OutOfTime, ProvisionError) as reason:
        return undiagnosed(error, reason)
    return Unsolvable(
        f"There is no environment for {request.platform}: {message}",
        advice=f"{advice} {DETAILS_ADVICE}",
        details=error.details,
    )


class _CondaConflict:
    """One request that cannot be solved, and the records of its channels. Its cause is a sentence, with
    advice."""

    def __init__(
        self, request: conda.SolveRequest, solver: conda.Solver, reasons: PinReasons, budget: Budget
    ) -> None:
        self.request, self.solver, self.reasons, self.budget = request, solver, reasons, budget
        self.records = ChannelRecords(solver, request)

    def _request(self, terms: Sequence[Term]) -> conda.SolveRequest:
        return replace(
            self.request,
            specs=tuple(term.text for term in terms if not term.is_bound),
            bounds=tuple(term.text for term in terms if term.is_bound),
        )

    def _is_solvable(self, terms: Sequence[Term], **offered: str) -> bool:
        """offered: versions of virtual packages that the machine has instead of the assumed ones."""
        self.budget.check()
        request = self._request(terms)
        machine = {**dict(request.virtual_packages), **offered}
        return self.solver.is_solvable(replace(request, virtual_packages=tuple(machine.items())))

    # Requirements that no record satisfies.

    def missing_records(self) -> tuple[str, str] | None:
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
        texts = [option for option in options if option is not None]
        if texts:
            advice += f" Or use {' and '.join(texts)}."
        return f"{'; '.join(sentences)}.", advice

    def _usable_records(self, spec: str) -> list[ChannelRecord]:
        """The records that the solver may choose: those of the first channel that has any."""
        visible = [record for record in self.records.find(spec) if record.visible]
        return [record for record in visible if record.channel == visible[0].channel]

    def _alternative(self, spec: str) -> str:
        """What the channels have that comes close to a requirement."""
        channels = [spec.rpartition("::")[0]] if "::" in spec else self.request.channels
        have = f"{' and '.join(channels)} {'has' if len(channels) == 1 else 'have'}"
        hidden = [record for record in self.records.find(spec) if not record.visible]
        if hidden:
            dates = sorted(record.date for record in hidden if record.date)
            since = f"since {dates[0]}" if dates else "without a date"
            return f"{have} it {since}, which `as_of` {self.request.as_of} hides"
        name, versionless = conda.spec_name(spec), conda.without_version(spec)
        any_version = self.records.find(versionless)
        if any_version:
            same = self.records.find(conda.without_build(spec))
            builds = [f"{record.version} {record.build}" for record in same]
            versions = [record.version for record in any_version]  # newest first
            return f"{have} {name} {_listed(builds or versions)}"
        platforms = [other for other in PLATFORMS if self.records.find(versionless, other)]
        if platforms:
            return f"{have} {name} only for {', '.join(platforms)}"
        similar = self.records.similar_names(name)
        names = f"; similar names: {', '.join(similar)}" if similar else ""
        return f"{have} no package of that name for {self.request.platform}{names}"

    # Requirements that conflict.

    def conflict(self) -> tuple[str, str]:
        terms = [Term(False, text) for text in self.request.specs]
        terms += [Term(True, text) for text in self.request.bounds]
        by_weight = sorted(terms, key=lambda term: self.reasons.weight(term.text))
        core = minimal(by_weight, self._is_solvable)
        texts = [term.text for term in core]
        described = self.reasons.describe(texts)
        chain = self._chain(core)
        need = self._machine_need(core, chain)
        if need is not None:
            requirement = f"{need.virtual} {need.spec}".removesuffix(" *")
            if need.package in {conda.spec_name(text) for text in texts}:
                needed = f"requires {requirement}"
            else:
                versions = _listed(need.versions.split(" | "))
                needed = f"needs {need.package} {versions} ({requirement})"
            offer = dict(self.request.virtual_packages).get(need.virtual, "none")
            return (
                f"{described} {needed}, and {offer} is assumed "
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
        shown = [*chain[:MAX_LINES], "  ..."] if len(chain) > MAX_LINES else chain
        message = "\n".join([f"{described} {verb}:", *shown])
        return message, self._advice(terms, core)

    def _machine_need(self, core: Sequence[Term], chain: Sequence[str]) -> MachineNeed | None:
        """What the oldest machine that suffices must have, if the machine is the cause."""
        needs = sorted(_machine_needs(chain), key=lambda need: version_key(need.version))
        for need in needs:
            if self._is_solvable(core, **{need.virtual: need.version}):
                return need
        return None

    def _chain(self, core: Sequence[Term]) -> list[str]:
        """How the solver comes to its conflict, from these requirements alone."""
        try:
            self.solver.solve(self._request(core))
        except Unsolvable as error:
            lines = error.details.removeprefix(SOLVER_PREFIX).splitlines()
            shown = [f"  {TREE.sub(' ', line)}" for line in lines if line.strip()]
            return [line for line, _ in groupby(shown)]  # a reason comes once for each record
        return []

    def _advice(self, terms: Sequence[Term], core: Sequence[Term]) -> str:
        """What else could be requested, or left out."""
        changes = []
        if any(conda.spec_name(term.text) == "python" for term in core):
            changes = self._other_python(terms)
        changes += suggestions(
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
            packages = self.solver.solve(replace(self.request, specs=specs))
        except Unsolvable:
            return None
        return next(f"{name} {package.version}" for package in packages if package.name == name)

    def _other_python(self, terms: Sequence[Term]) -> list[str]:
        """The option for the nearest Python with which the request can be solved."""
        pins = [term.text for term in terms if PYTHON_PIN.fullmatch(term.text)]
        if len(pins) != 1:
            return []
        python = pins[0].removeprefix("python=")
        minors = {".".join(record.version.split(".")[:2]) for record in self.records.find("python")}
        for other in nearest_pythons(python, minors):
            # Builds of the pytorch channel are named after their Python: py3.11_cuda12.1*.
            changed = [
                term._replace(
                    text=re.sub(rf"(?<=py|n=){re.escape(python)}(?!\d)", other, term.text)
                )
                for term in terms
            ]
            if self._is_solvable(changed):
                return [f"--python {other} solves it"]
        return []


def _machine_needs(chain: Sequence[str]) -> Iterator[MachineNeed]:
    """What packages of a solver's chain require of the machine in vain."""
    parents: dict[int, tuple[str, str]] = {}  # indentation -> package, its releases
    for line in chain:
        if match := PARENT.fullmatch(line):
            parents[len(match[1])] = match[2], match[3]
        elif match := UNMET.match(line):
            indents = [indent for indent in parents if indent < len(match[1])]
            if indents:
                yield MachineNeed(*parents[max(indents)], virtual=match[2], spec=match[3])


def _listed(texts: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(texts))
    text = ", ".join(distinct[:MAX_SHOWN])
    if len(distinct) > MAX_SHOWN:
        text += f" and {len(distinct) - MAX_SHOWN} more"
    return text
