"""Why conda's solver found no answer: which requirement, with its reason and source, conflicts with
which fact or record, and what to change.

We look into the channels' records and solve again with fewer requirements; we do not parse the
solver's output, which is in the details.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from provision.adapters import conda, uv
from provision.adapters.conda import ChannelRecord, ChannelRecords
from provision.catalog import toolkits, version_key
from provision.core.errors import ProvisionError, Unsolvable
from provision.core.platforms import PLATFORMS
from provision.lockfile.diagnose.unsat_core import (
    TORCH,
    Budget,
    OutOfTime,
    PinReasons,
    describe_option,
    minimal,
    nearest_pythons,
    suggest_options,
    undiagnosed,
)
from provision.lockfile.input_files import VirtualPackages

# CPU seconds.
BUDGET_S = 10.0
MAX_SHOWN = 6
MAX_DEPTH = 3
PYTHON_PIN = re.compile(r"python=\d+\.\d+")
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
    except (OutOfTime, ProvisionError) as reason:
        return undiagnosed(error, reason)
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

    def diagnose(self, depth: int = MAX_DEPTH) -> SolveDiagnosis:
        return self._missing_records() or self._conflict(depth)

    def _is_solvable(self, terms: Sequence[Term], machine: VirtualPackages | None = None) -> bool:
        self.budget.check()
        return self.solver.is_solvable(self._request(terms, machine))

    def _request(
        self, terms: Sequence[Term], machine: VirtualPackages | None = None
    ) -> conda.SolveRequest:
        return dataclasses.replace(
            self.request,
            specs=tuple(term.text for term in terms if not term.is_bound),
            bounds=tuple(term.text for term in terms if term.is_bound),
            virtual_packages=self.request.virtual_packages if machine is None else machine,
        )

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
        if not any(self.records.package_names(own, platform) for own in channels):
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

    # Requirements that conflict, and the fact or the records that show it.

    def _conflict(self, depth: int) -> SolveDiagnosis:
        terms = [Term(False, text) for text in self.request.specs]
        terms += [Term(True, text) for text in self.request.bounds]
        by_weight = sorted(terms, key=lambda term: self.reasons.weight(term.text))
        core = minimal(by_weight, self._is_solvable)
        texts = [term.text for term in core]
        described = self.reasons.describe(texts)
        machine_fact = self._machine_fact(core)
        if machine_fact:
            return SolveDiagnosis(
                f"{described} {machine_fact}",
                "Assume a machine that offers it (--cuda, --glibc), or request a build that "
                "needs less.",
            )
        if len(texts) == 1:
            verb = "cannot be installed"
        elif len({conda.spec_name(text) for text in texts}) == 1:
            verb = "exclude each other"
        else:
            verb = "cannot be installed together"
        causes: list[str] = []
        for first, second in itertools.combinations(texts, 2):
            direct = self._direct_conflict(first, second) + self._direct_conflict(second, first)
            causes += direct or self._conflicts_over_third(first, second)
        because = "; ".join(dict.fromkeys(causes))
        if not because and depth:
            because = self._dependency_conflict(texts, depth)
        detail = f": {because}" if because else ""
        return SolveDiagnosis(f"{described} {verb}{detail}.", self._advice(terms, core))

    def _machine_fact(self, core: Sequence[Term]) -> str | None:
        """The virtual package that is too old or missing, and how new it would have to be."""
        assumed = dict(self.request.virtual_packages)

        def is_enough(name: str, version: str) -> bool:
            return self._is_solvable(core, tuple({**assumed, name: version}.items()))

        # The versions that a machine may offer, oldest first. The last one is newer than any
        # package requires: it shows whether the machine is the cause.
        steps_by_name = {"__glibc": (*uv.UV_GLIBC, "2.99"), "__cuda": (*toolkits(), "99")}
        for name, steps in steps_by_name.items():
            if not is_enough(name, steps[-1]):
                continue
            required: list[str] = []
            for term in core:
                required += self._unmet(self._usable_records(term.text), name)
            needed = f"requires {_listed(required)}"
            if not required:
                newer = list(steps)
                if name in assumed:
                    current = version_key(assumed[name].split()[0])
                    newer = [step for step in steps if version_key(step) > current]
                index = bisect.bisect_left(
                    newer, True, hi=len(newer) - 1, key=lambda step: is_enough(name, step)
                )
                machine = tuple({**assumed, name: newer[index]}.items())
                needed = f"needs {self._demanding_dependencies(core, machine, name)}"
            offer = f"{assumed.get(name, 'none')} is assumed"
            return f"{needed}, and {offer} (virtual-packages.yml, {self.request.platform})."
        return None

    def _unmet(self, records: Sequence[ChannelRecord], name: str) -> list[str]:
        """What records require of a virtual package, if the assumed machine suits none of them."""
        version = dict(self.request.virtual_packages).get(name)
        machine = {}
        if version is not None:
            machine[name] = conda.PackageBuild(name=name, version=version.split()[0])
        unmet: dict[str, None] = {}
        for record in records:
            demands = [text for text in record.depends if text.split()[0] == name]
            violations = conda.unsatisfied_specs(demands, machine)
            if not violations:
                return []
            unmet.update((demand, None) for demand, _ in violations)
        return list(unmet)

    def _demanding_dependencies(
        self, core: Sequence[Term], machine: VirtualPackages, name: str
    ) -> str:
        """The packages of a solution for a newer machine that exist for no older one, with what
        they require of it.
        """
        packages = self.solver.solve(self._request(core, machine))
        specs = [term.text for term in core]
        for package in packages:
            specs += package.depends
        demanding = []
        for package in packages:
            records = self._usable_records(package.name)
            for spec in specs:
                if conda.spec_name(spec) == package.name:
                    admitted = {record.filename for record in self.records.find(spec)}
                    records = [record for record in records if record.filename in admitted]
            if self._unmet(records, name):
                demands = [text for text in package.depends if text.split()[0] == name]
                demanding.append(f"{package.name} {package.version} ({_listed(demands)})")
        return _listed(demanding) or f"about {name} {dict(machine)[name]}"

    def _direct_conflict(self, spec: str, other: str) -> list[str]:
        """What all records of one requirement require of the other package, if that excludes the
        other requirement.
        """
        demands = _requirements_on(self._usable_records(spec), conda.spec_name(other))
        version_of_other = other.rpartition("::")[2]
        for demand in demands[:MAX_SHOWN]:
            if self.records.has_match([demand, version_of_other]):
                return []
        return [f"{conda.spec_name(spec)} requires {_listed(demands)}"] if demands else []

    def _conflicts_over_third(self, first: str, second: str) -> list[str]:
        """What the records of two requirements require of a third package, if no version of it
        meets both.
        """
        first_records, second_records = self._usable_records(first), self._usable_records(second)
        common = _dependency_names(first_records) & _dependency_names(second_records)
        conflicts = []
        for name in sorted(common - set(dict(self.request.virtual_packages))):
            first_demands = _requirements_on(first_records, name)
            second_demands = _requirements_on(second_records, name)
            if not first_demands or not second_demands:
                continue
            pairs = itertools.product(first_demands[:MAX_SHOWN], second_demands[:MAX_SHOWN])
            if not any(self.records.has_match(pair) for pair in pairs):
                conflicts.append(
                    f"{conda.spec_name(first)} requires {_listed(first_demands)}, "
                    f"{conda.spec_name(second)} requires {_listed(second_demands)}"
                )
        return conflicts

    def _dependency_conflict(self, texts: Sequence[str], depth: int) -> str:
        """The same diagnosis for the dependencies of one requirement's newest record, together with
        the other requirements; empty if these can be solved.
        """
        closest = min(texts, key=lambda text: abs(self.reasons.weight(text) - TORCH))
        newest = self._usable_records(closest)[0]
        rest = [text for text in texts if text is not closest]
        depends = [text for text in newest.depends if not text.startswith("__")]
        request = dataclasses.replace(self.request, specs=(*depends, *rest), bounds=())
        if self.solver.is_solvable(request):
            return ""
        inherited = dict.fromkeys(depends, f"needed by {newest.name}")
        reasons = dataclasses.replace(self.reasons, reasons={**inherited, **self.reasons.reasons})
        deeper = _CondaConflict(request, self.solver, reasons, self.budget)
        message = deeper.diagnose(depth - 1).message.rstrip(".")
        return f"for {newest.name} {newest.version} {newest.build}, {message}"

    def _advice(self, terms: Sequence[Term], core: Sequence[Term]) -> str:
        """Which of a user's own requirements could have another version, and which options leave
        out what conflicts.
        """
        ways = []
        for term in core:
            versionless = conda.without_version(term.text)
            if not self.reasons.is_users(term.text) or versionless == term.text:
                continue
            rest = [other for other in terms if other is not term]
            if not self._is_solvable([*rest, Term(False, versionless)]):
                continue
            specs = [versionless if text == term.text else text for text in self.request.specs]
            request = dataclasses.replace(self.request, specs=tuple(specs))
            name = conda.spec_name(versionless)
            for package in self.solver.solve(request):
                if package.name == name:
                    ways.append(f"`{term.text}` could become {name} {package.version}")
        if any(conda.spec_name(term.text) == "python" for term in core):
            ways += self._other_python(terms)
        ways += suggest_options(
            [term.text for term in terms],
            [term.text for term in core],
            self.reasons,
            lambda rest: self._is_solvable([term for term in terms if term.text in rest]),
        )
        if ways:
            return f"Without other changes, {', or '.join(ways)}."
        leave_out = ", or leave one of them out" if len(core) > 1 else ""
        return f"Request another combination (provision matrix lists them){leave_out}."

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


def _listed(texts: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(texts))
    text = ", ".join(distinct[:MAX_SHOWN])
    if len(distinct) > MAX_SHOWN:
        text += f" and {len(distinct) - MAX_SHOWN} more"
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


def _dependency_names(records: Sequence[ChannelRecord]) -> set[str]:
    names: set[str] = set()
    for record in records:
        names.update(text.split()[0] for text in record.depends)
    return names


def _requirements_on(records: Sequence[ChannelRecord], name: str) -> list[str]:
    """What records require of a package beyond its presence, without repeats."""
    requirements: dict[str, None] = {}
    for record in records:
        for text in (*record.depends, *record.constrains):
            if " " in text and text.split()[0] == name:
                requirements[text] = None
    return list(requirements)
