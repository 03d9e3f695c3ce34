"""The CUDA guard: a CUDA environment never silently becomes a CPU one.

Also explains, from the channels' records, why a solver chose another build.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from provision import sources
from provision.adapters import conda
from provision.adapters.conda import ChannelRecord, ChannelRecords
from provision.core.errors import CheckFailed, ProvisionError, Unsolvable
from provision.core.types import LockedPackage, Resolution
from provision.lockfile.diagnose.unsat_core import PinReasons

MAX_BUILDS_SHOWN = 6
MAX_BUILDS_TRIED = 3  # each costs a solve or two


def guard(packages: Sequence[LockedPackage], resolution: Resolution, cause: str = "") -> None:
    """Raise CheckFailed, with the chosen record, unless the locked torch of one platform is the
    requested build.
    """
    problem = torch_problem(packages, resolution)
    if problem:
        raise CheckFailed(
            f"{problem} {cause}".rstrip(),
            advice=(
                "Nothing was written. Compare environment.yml and virtual-packages.yml with what "
                "`provision render --check` shows."
            ),
        )


def refuse_second_torch(packages: Sequence[LockedPackage], resolution: Resolution) -> None:
    """Raise Unsolvable if a requested conda package brings conda's own torch, and torch is to be a
    wheel: both would write the same files."""
    if sources.by_name(resolution.source).manager == "conda":
        return
    depends = {
        package.name: [text.split()[0] for text in package.depends]
        for package in packages
        if package.manager == "conda"
    }
    own = conda.TORCH_PACKAGES & depends.keys()
    if not own:
        return
    requested = [conda.spec_name(text) for text in resolution.spec.conda]
    culprits = [name for name in requested if _needs(name, own, depends)] or sorted(own)
    wheels = " ".join(f"--pip {conda.as_wheel(name)}" for name in culprits)
    raise Unsolvable(
        f"conda's {', '.join(culprits)} needs conda's own {sorted(own)[-1]}, and torch "
        f"{resolution.torch} of this request is a wheel: both would write the same files.",
        advice=f"Take it as a wheel: `{wheels}`, or `pip:` instead of `conda:` in spec.yml.",
    )


def _needs(name: str, wanted: Collection[str], depends: Mapping[str, Sequence[str]]) -> bool:
    """Whether a package is one of some packages, or requires one of them."""
    pending, seen = [name], set[str]()
    while pending:
        current = pending.pop()
        if current in wanted:
            return True
        if current not in seen:
            seen.add(current)
            pending += depends.get(current, ())
    return False


def torch_problem(packages: Sequence[LockedPackage], resolution: Resolution) -> str | None:
    """What is wrong with the locked torch, with its record; None if it is right."""
    source = sources.by_name(resolution.source)
    name = source.torch_package
    torch = next((package for package in packages if package.name == name), None)
    if torch is None:
        return f"The solver's answer has no {name}; was it removed from environment.yml by hand?"
    problem = source.locked_torch_problem(packages, torch, resolution)
    if problem is None:
        return None
    record = f"{torch.name} {torch.version} {torch.build}".rstrip()
    return f"{problem} The solver chose {record} ({torch.filename}, {torch.platform})."


def explain_build(
    request: conda.SolveRequest, resolution: Resolution, solver: conda.Solver, reasons: PinReasons
) -> str:
    """Why conda's solver could choose another build of pytorch, and what prevents the right one."""
    source = sources.by_name(resolution.source)
    specs = [spec for spec in request.specs if conda.spec_name(spec) == source.torch_package]
    sentences = []
    for spec in specs:
        verdict = "requires it" if conda.pins_build(spec) else "pins no build string"
        sentences.append(f"It could: {reasons.describe([spec])} {verdict}.")
    records, right_cuda = [], []
    for record in ChannelRecords(solver, request).find(source.torch_package):
        if record.version != resolution.torch or not record.visible:
            continue
        records.append(record)
        if source.is_build_string_of(record.build, resolution.cuda):
            right_cuda.append(record)
    right_builds = []
    for record in right_cuda:
        # Every builder of pytorch writes Python into the build string: py3.11_..., ..._py311_...
        match = re.search(r"(?:^|_)py(\d)\.?(\d+)(?:_|h|$)", record.build)
        if match is None or f"{match[1]}.{match[2]}" == resolution.python:
            right_builds.append(record)
    flavor = f"CUDA {resolution.cuda}" if resolution.cuda else "CPU"
    if not right_cuda:
        sentences.append(
            f"No channel has a {flavor} build of pytorch {resolution.torch} for "
            f"{request.platform}; the builds are: {_builds(records) or 'none'}."
        )
    elif not right_builds:
        sentences.append(
            f"No {flavor} build of pytorch {resolution.torch} is for Python {resolution.python}: "
            f"{_builds(right_cuda)}."
        )
    else:
        sentences.append(_conflict(right_builds, request, specs, solver, reasons))
    return " ".join(sentences)


def _builds(records: Sequence[ChannelRecord]) -> str:
    return ", ".join(dict.fromkeys(record.build for record in records[:MAX_BUILDS_SHOWN]))


def _conflict(
    right_builds: Sequence[ChannelRecord],
    request: conda.SolveRequest,
    specs: Sequence[str],
    solver: conda.Solver,
    reasons: PinReasons,
) -> str:
    """What prevents the right builds, which exist; names the one to pin if one can be solved."""
    sentence = ""
    for record in right_builds[:MAX_BUILDS_TRIED]:
        exact = f"{record.channel}::{record.name}=={record.version}={record.build}"
        other_specs = [spec for spec in request.specs if spec not in specs]
        exact_request = replace(request, specs=(exact, *other_specs))
        try:
            solver.solve(exact_request)
        except Unsolvable as error:
            from provision.lockfile.diagnose import conda as diagnose_conda

            exact_reasons = replace(reasons, reasons={**reasons.reasons, exact: "the right build"})
            explained = diagnose_conda.explain(error, exact_request, solver, exact_reasons)
            sentence = f"The right build, {record.build}, cannot be installed"
            if explained is error:  # no cause was found, or the time for it is used up
                sentence += " with the other requirements."
            else:
                sentence += f": {explained.message.partition(': ')[2]}"
        except ProvisionError as error:
            return f"The right build, {record.build}, could not be checked: {error.message}"
        else:
            return f"{record.build} can be installed: pin that build string."
    return sentence
