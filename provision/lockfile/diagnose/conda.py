"""Why conda's solver found no answer: which requirements, with their reasons and sources, no record
matches or conflict.

The channels' records show what is missing. Solving again with fewer requirements finds those that
conflict; the solver's own output about these alone says how.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from provision.adapters import conda
from provision.adapters.conda import ChannelRecords
from provision.core.errors import ProvisionError, Unsolvable
from provision.lockfile.diagnose.unsat_core import (
    DETAILS_ADVICE,
    WITH,
    Budget,
    OutOfTime,
    PinReasons,
    minimal,
    solutions,
    undiagnosed,
)

# CPU seconds.
BUDGET_S = 10.0
MAX_SHOWN = 6
MAX_LINES = 16
# Newer than any package requires. Those that require a glibc exclude glibc 3.
NEWEST = {"__cuda": "9999", "__glibc": "2.9999"}
# The solver draws a tree (py-rattler 0.28).
SOLVER_PREFIX = "Cannot solve the request because of: "
TREE = re.compile(r"[│├└─]")
UNMET_BY_MACHINE = re.compile(r"(__\w+) .*, for which no candidates were found")


def explain(
    error: Unsolvable, request: conda.SolveRequest, solver: conda.Solver, reasons: PinReasons
) -> Unsolvable:
    """The same failure, with its cause if the budget suffices to find it."""
    records = ChannelRecords(solver, request)
    try:
        missing = [spec for spec in request.specs if not records.find_visible(spec)]
        if missing:
            message, advice = _missing(missing, records, request, reasons)
        else:
            message, advice = _conflict(request, solver, records, reasons)
    except (OutOfTime, ProvisionError) as reason:
        return undiagnosed(error, reason)
    return Unsolvable(
        f"There is no environment for {request.platform}: {message}",
        advice=f"{advice}{DETAILS_ADVICE}",
        details=error.details,
    )


def _missing(
    missing: Sequence[str],
    records: ChannelRecords,
    request: conda.SolveRequest,
    reasons: PinReasons,
) -> tuple[str, str]:
    """A sentence about requirements that no record matches, and advice."""
    sentences = [
        f"no record matches {reasons.describe([spec])}: {_close_records(spec, records, request)}"
        for spec in missing
    ]
    advice = "Name a channel that has it with --channel, or request what is available. "
    options = dict.fromkeys(filter(None, map(reasons.option, missing)))
    if options:
        advice += f"Or use {' and '.join(options)}. "
    return f"{'; '.join(sentences)}.", advice


def _close_records(spec: str, records: ChannelRecords, request: conda.SolveRequest) -> str:
    """What the channels have that comes close to a requirement."""
    channels = [spec.rpartition("::")[0]] if "::" in spec else request.channels
    have = f"{' and '.join(channels)} {'has' if len(channels) == 1 else 'have'}"
    hidden = records.find(spec)
    if hidden:
        dates = sorted(record.date for record in hidden if record.date)
        since = f"since {dates[0]}" if dates else "without a date"
        return f"{have} it {since}, which `as_of` {request.as_of} hides"
    name = conda.spec_name(spec)
    builds = dict.fromkeys(
        f"{record.version} {record.build}" for record in records.find(conda.without_version(spec))
    )
    if builds:
        return f"{have} {name} {', '.join(list(builds)[:MAX_SHOWN])}"  # newest first
    similar = records.similar_names(name)
    names = f"; similar names: {', '.join(similar)}" if similar else ""
    return f"{have} no package of that name for {request.platform}{names}"


def _conflict(
    request: conda.SolveRequest, solver: conda.Solver, records: ChannelRecords, reasons: PinReasons
) -> tuple[str, str]:
    """A sentence about requirements that conflict, with the solver's explanation, and advice."""
    budget = Budget(BUDGET_S)

    def part(texts: Sequence[str]) -> conda.SolveRequest:
        specs = tuple(text for text in request.specs if text in texts)
        bounds = tuple(text for text in request.bounds if text in texts)
        return replace(request, specs=specs, bounds=bounds)

    def is_solvable(request: conda.SolveRequest) -> bool:
        budget.check()
        return solver.is_solvable(request)

    requirements = [*request.specs, *request.bounds]
    by_weight = sorted(requirements, key=reasons.weight)
    core = minimal(by_weight, lambda texts: is_solvable(part(texts)))
    explanation = _explanation(solver, part(core))
    pins = [text for text in core if re.fullmatch(r"python=\d+\.\d+", text)]
    python = pins[0].removeprefix("python=") if pins else ""

    def solves(option: str) -> bool:
        if not option.startswith("--python "):
            out = option.split(WITH)
            return is_solvable(part([t for t in requirements if reasons.option(t) not in out]))
        # Builds of the pytorch channel are named after their Python: py3.11_cuda12.1*.
        pattern = rf"(?<=py|n=){re.escape(python)}(?!\d)"
        other = option.removeprefix("--python ")
        specs = tuple(re.sub(pattern, other, text) for text in request.specs)
        return is_solvable(replace(request, specs=specs))

    pythons = {".".join(record.version.split(".")[:2]) for record in records.find("python")}
    advice = solutions(core, reasons, solves, python, pythons)
    machine = dict(request.virtual_packages)
    lacking = sorted(set(UNMET_BY_MACHINE.findall("\n".join(explanation))))
    newest = tuple({**machine, **NEWEST}.items())
    if lacking and is_solvable(replace(part(core), virtual_packages=newest)):
        assumed = ", ".join(f"{name} {machine.get(name, 'none')}" for name in lacking)
        advice += (
            f"A newer machine than virtual-packages.yml assumes for {request.platform} ({assumed}) "
            "solves it: --cuda and --glibc say which. "
        )
    elif not advice:
        leave_out = ", or leave one of them out" if len(core) > 1 else ""
        advice = f"Request another combination (provision matrix lists them){leave_out}. "
    verb = "cannot be installed" if len(core) == 1 else "cannot be installed together"
    return "\n".join([f"{reasons.describe(core)} {verb}:", *explanation]), advice


def _explanation(solver: conda.Solver, request: conda.SolveRequest) -> list[str]:
    """How the solver comes to its conflict."""
    try:
        solver.solve(request)
    except Unsolvable as error:
        tree = TREE.sub(" ", error.details.removeprefix(SOLVER_PREFIX))
        # A reason comes once for each record.
        lines = [f"  {line}" for line, _ in groupby(tree.splitlines()) if line.strip()]
        return [*lines[:MAX_LINES], "  ..."] if len(lines) > MAX_LINES else lines
    return []
