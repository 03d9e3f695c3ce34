"""PinReasons conda's solver found no answer, in our terms: which request, with its reason and source, against which fact or record, and
what to change.

Found by looking at the channels' records and by solving again with less, not by reading the solver's words; those are in the details.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from provision.adapters import conda
from provision.adapters.conda import ChannelRecord, ChannelRecords
from provision.catalog import version_key
from provision.core.errors import ProvisionError, Unsolvable
from provision.core.types import PLATFORMS
from provision.lockfile.diagnose.unsat_core import (
    TORCHS,
    Budget,
    OutOfTime,
    PinReasons,
    minimal,
    suggest_options,
    without,
)

SHOWN = 6
DEPTH = 3
# What a machine could offer at most, to see whether its offer is what stands in the way, and the steps in between.
MOST: Mapping[str, tuple[str, ...]] = {
    "__glibc": ("2.17", "2.28", "2.31", "2.34", "2.35", "2.36", "2.38", "2.39", "2.40", "2.99"),
    "__cuda": ("10.2", "11.0", "11.8", "12.0", "12.4", "12.6", "12.8", "12.9", "13.0", "99"),
}
WORDS = "-v shows the solver's own words."
Machine = tuple[tuple[str, str], ...]
Part = tuple[str, str]  # "spec" or "bound", and the requirement


def explain(
    error: Unsolvable, request: conda.SolveRequest, solver: conda.Solver, why: PinReasons
) -> Unsolvable:
    """The same failure, with its cause as far as it could be found within the budget."""
    try:
        found = _Case(request, solver, why, Budget()).explain()
    except (OutOfTime, ProvisionError):
        found = None
    if found is None:
        return error
    message, advice = found
    return Unsolvable(
        f"There is no environment for {request.platform}: {message}",
        advice=f"{advice} {WORDS}",
        details=error.details,
    )


class _Case:
    """One request that has no answer, and what is known of the channels behind it."""

    def __init__(
        self, request: conda.SolveRequest, solver: conda.Solver, why: PinReasons, budget: Budget
    ) -> None:
        self.request, self.solver, self.why, self.budget = request, solver, why, budget
        self.records = ChannelRecords(solver, request)

    def explain(self, depth: int = DEPTH) -> tuple[str, str] | None:
        return self._absent() or self._conflict(depth)

    def _solvable(self, parts: Sequence[Part], machine: Machine | None = None) -> bool:
        self.budget.check()
        specs = tuple(text for kind, text in parts if kind == "spec")
        bounds = tuple(text for kind, text in parts if kind == "bound")
        virtual = self.request.virtual_packages if machine is None else machine
        return self.solver.is_solvable(
            dataclasses.replace(self.request, specs=specs, bounds=bounds, virtual_packages=virtual)
        )

    # Requirements that no record satisfies, whatever else is asked for.

    def _absent(self) -> tuple[str, str] | None:
        missing = [spec for spec in self.request.specs if not self.usable(spec)]
        instead: dict[str, list[str]] = {}
        for spec in missing:
            instead.setdefault(self._instead(spec), []).append(spec)
        said = "; ".join(
            f"no record is {self.why.listed(specs)}: {there}" for there, specs in instead.items()
        )
        advice = "Name a channel that has it with --channel, or ask for what there is."
        if options := [option for spec in missing if (option := self.why.option(spec))]:
            advice += f" Or take {' and '.join(map(without, dict.fromkeys(options)))}."
        return (f"{said}.", advice) if missing else None

    def usable(self, spec: str) -> list[ChannelRecord]:
        """The records that the solver may choose: those of the first channel that has any."""
        visible = [record for record in self.records.find(spec) if record.visible]
        return [record for record in visible if record.channel == visible[0].channel]

    def _instead(self, spec: str) -> str:
        """What there is of a package instead of what was asked for."""
        channel = spec.rpartition("::")[0]
        where = channel or ", ".join(self.request.channels)
        if channel and not self._asked(channel):
            return f"{channel} is not among the channels of environment.yml ({', '.join(self.request.channels)})"
        found = self.records.find(spec)
        if hidden := [record for record in found if not record.visible]:
            dates = sorted(record.date for record in hidden if record.date)
            return f"{where} has it {f'since {dates[0]}' if dates else 'without a date'}, which --as-of {self.request.as_of} hides"
        known = self.records.find(conda.without_version(spec))
        if not known:
            return self._elsewhere(spec, channel, where)
        if same := self.records.find(conda.without_build(spec)):
            return f"{where} has this version with the builds {listed(record.build for record in same)}"
        return f"{where} has {known[0].name} {listed(_nearest(spec, known))}"

    def _asked(self, channel: str) -> bool:
        return conda.channel_url(channel) in map(conda.channel_url, self.request.channels)

    def _elsewhere(self, spec: str, channel: str, where: str) -> str:
        request, name = self.request, conda.spec_name(spec)
        if not any(
            self.records.holds(own, request.platform)
            for own in ([channel] if channel else request.channels)
        ):
            return f"{where} has nothing at all for {request.platform}"
        if channel and (others := {record.channel for record in self.records.find(name)}):
            return f"{channel} has no {name}, but {', '.join(sorted(others))} has"
        if others := {
            platform
            for platform in PLATFORMS
            if self.records.find(conda.without_version(spec), platform)
        }:
            return f"{where} has {name} for {', '.join(sorted(others))} only"
        near = self.records.close(name)
        return f"{where} has no package of that name" + (
            f"; near it: {', '.join(near)}" if near else ""
        )

    # Requirements that cannot be met together, and the fact or the records that are against it.

    def _conflict(self, depth: int) -> tuple[str, str] | None:
        every = [("spec", text) for text in self.request.specs] + [
            ("bound", text) for text in self.request.bounds
        ]
        core = minimal(sorted(every, key=lambda part: self.why.weight(part[1])), self._solvable)
        texts = [text for _, text in core]
        named = self.why.listed(texts)
        if fact := self._machine_fact(core):
            return (
                f"{named} {fact}",
                "Ask for a machine that offers it (--cuda, --glibc), or for a build that needs less.",
            )
        verb = "cannot be had together" if len(texts) > 1 else "cannot be had"
        if len(texts) > 1 and len({conda.spec_name(text) for text in texts}) == 1:
            verb = "exclude each other"
        because = "; ".join(dict.fromkeys(self._against(texts))) or (
            self._deeper(texts, depth) if depth else None
        )
        return f"{named} {verb}{f': {because}' if because else ''}.", self._way_out(every, core)

    def _machine_fact(self, core: Sequence[Part]) -> str | None:
        """The virtual package that is too old or not there, and how new it would have to be."""
        offered = dict(self.request.virtual_packages)
        for name, steps in MOST.items():
            if not self._solvable(core, tuple({**offered, name: steps[-1]}.items())):
                continue
            wishes = listed(wish for _, text in core for wish in _wishes(self.usable(text), name))
            newer = [
                step
                for step in steps
                if name not in offered or version_key(step) > version_key(offered[name].split()[0])
            ]
            enough = next(
                step
                for step in newer
                if self._solvable(core, tuple({**offered, name: step}.items()))
            )
            needed = wishes or (f"{name} {enough} or so" if enough != steps[-1] else name)
            has = f"{offered[name]} is assumed" if name in offered else "none is assumed"
            return f"wants {needed}, and {has} (virtual-packages.yml, {self.request.platform})."
        return None

    def _against(self, texts: Sequence[str]) -> Iterable[str]:
        """What the records of one requirement say of another, or of a third package, that the other's do not allow."""
        for one, other in itertools.combinations(texts, 2):
            said = [*self._direct(one, other), *self._direct(other, one)]
            yield from said or self._third(one, other)

    def _direct(self, one: str, other: str) -> Iterable[str]:
        wishes = _wishes(self.usable(one), conda.spec_name(other))
        if wishes and not any(
            self.records.meet([wish, other.rpartition("::")[2]]) for wish in wishes[:SHOWN]
        ):
            yield f"{conda.spec_name(one)} wants {listed(wishes)}"

    def _third(self, one: str, other: str) -> Iterable[str]:
        names = [
            {text.split()[0] for record in self.usable(side) for text in record.depends}
            for side in (one, other)
        ]
        for name in sorted(names[0] & names[1] - set(dict(self.request.virtual_packages))):
            mine, theirs = _wishes(self.usable(one), name), _wishes(self.usable(other), name)
            pairs = itertools.product(mine[:SHOWN], theirs[:SHOWN])
            if mine and theirs and not any(self.records.meet(pair) for pair in pairs):
                yield f"{conda.spec_name(one)} wants {listed(mine)}, {conda.spec_name(other)} wants {listed(theirs)}"

    def _deeper(self, texts: Sequence[str], depth: int) -> str | None:
        """The same question for what the newest record of one requirement needs, beside the other requirements."""
        chosen = min(texts, key=lambda text: abs(self.why.weight(text) - TORCHS))
        newest, others = self.usable(chosen)[0], [text for text in texts if text is not chosen]
        needs = [text for text in newest.depends if not text.startswith("__")]
        request = dataclasses.replace(self.request, specs=(*needs, *others), bounds=())
        why = PinReasons(
            dict.fromkeys(needs, f"needed by {newest.name}") | dict(self.why.reasons),
            self.why.otherwise,
        )
        found = (
            None
            if self.solver.is_solvable(request)
            else _Case(request, self.solver, why, self.budget).explain(depth - 1)
        )
        return (
            f"for {newest.name} {newest.version} {newest.build}, {found[0].rstrip('.')}"
            if found
            else None
        )

    def _way_out(self, every: Sequence[Part], core: Sequence[Part]) -> str:
        """Which of a user's own requirements, asked for without a version, gets one that fits."""
        ways = []
        for part in core:
            loose = conda.without_version(part[1])
            rest = [other for other in every if other is not part]
            if (
                self.why.is_users(part[1])
                and loose != part[1]
                and self._solvable([*rest, ("spec", loose)])
            ):
                ways.append(
                    f"`{part[1]}` could be {conda.spec_name(loose)} {self._version(part[1], loose)}"
                )
        texts, at_fault = [text for _, text in every], [text for _, text in core]
        ways += suggest_options(
            texts,
            at_fault,
            self.why,
            lambda rest: self._solvable([part for part in every if part[1] in rest]),
        )
        if ways:
            return f"With all else as it is, {', or '.join(ways)}."
        spare = ", or leave one of them out" if len(core) > 1 else ""
        return f"Ask for another combination (provision matrix shows what there is){spare}."

    def _version(self, spec: str, loose: str) -> str:
        specs = tuple(loose if text == spec else text for text in self.request.specs)
        answer = self.solver.solve(dataclasses.replace(self.request, specs=specs))
        return next(package.version for package in answer if package.name == conda.spec_name(loose))


def listed(texts: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(texts))
    return ", ".join(distinct[:SHOWN]) + (
        f" and {len(distinct) - SHOWN} others" if len(distinct) > SHOWN else ""
    )


def _nearest(spec: str, known: Sequence[ChannelRecord]) -> list[str]:
    """The versions of a package, those next to the one asked for first."""
    asked = _numbers(re.split(r"[=<>!~\s]+", spec, maxsplit=1)[-1])
    return sorted(
        {record.version for record in known},
        key=lambda version: _distance(asked, _numbers(version)),
    )


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _distance(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [abs(a - b) for a, b in itertools.zip_longest(one, other, fillvalue=0)]


def _wishes(records: Sequence[ChannelRecord], name: str) -> list[str]:
    """What records say of a package, each wish once."""
    texts = (
        text
        for record in records
        for text in (*record.depends, *record.constrains)
        if text.split()[0] == name
    )
    return list(dict.fromkeys(text for text in texts if " " in text))
