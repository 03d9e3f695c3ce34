"""The CUDA guard: a CUDA environment never silently becomes a CPU one. And why a solver chose another build, as far as records tell."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from provision.adapters import conda
from provision.adapters.conda import ChannelRecord, ChannelRecords
from provision.core.errors import CheckFailed, ProvisionError, Unsolvable
from provision.core.types import LockedPackage, Resolution
from provision.lockfile.diagnose import conda as explaining_conda
from provision.lockfile.diagnose.unsat_core import PinReasons

SHOWN = 6
TRIED = 3  # builds that might have been chosen instead, each of which costs a solve or two


def guard(packages: Sequence[LockedPackage], resolution: Resolution, cause: str = "") -> None:
    """The locked torch of one platform must be the build that was asked for. Raises CheckFailed with the record that was chosen."""
    if problem := problem_of(packages, resolution):
        raise CheckFailed(
            f"{problem}{' ' + cause if cause else ''}",
            advice="Nothing was written. Compare environment.yml and virtual-packages.yml with what `provision render --check` shows.",
        )


def problem_of(packages: Sequence[LockedPackage], resolution: Resolution) -> str | None:
    """What is wrong with the locked torch, naming its record."""
    name = torch_name(resolution)
    torch = next((package for package in packages if package.name == name), None)
    if torch is None:
        return f"The solver's answer holds no {name}; was it removed from environment.yml by hand?"
    problem = (
        _wheel_problem(packages, torch, resolution)
        if resolution.source == "wheels"
        else _build_problem(torch, resolution)
    )
    chosen = f"{torch.name} {torch.version} {torch.build}".rstrip()
    return (
        f"{problem} The solver chose {chosen} ({torch.filename}, {torch.platform})."
        if problem
        else None
    )


def torch_name(resolution: Resolution) -> str:
    return "torch" if resolution.source == "wheels" else "pytorch"


def _wheel_problem(
    packages: Sequence[LockedPackage], torch: LockedPackage, resolution: Resolution
) -> str | None:
    version, _, local = torch.version.partition("+")
    if version != resolution.torch:
        return f"The locked torch is {torch.version}, not {resolution.torch}."
    wanted = resolution.local_version.partition("+")[2]
    if (not local and resolution.needs_local_build) or local not in ("", wanted):
        return f"The locked torch is not the {wanted} build."
    if _brings_cuda(resolution) and not any(
        text.startswith(("nvidia-", "cuda-")) for text in torch.depends
    ):
        return f"CUDA {resolution.cuda} was asked for, but the locked torch needs no CUDA libraries: it is a build for CPUs."
    return _nccl_problem(packages, resolution)


def _brings_cuda(resolution: Resolution) -> bool:
    """Whether the build asked for has CUDA in packages beside it (since torch 1.13), and not inside."""
    return any(pin.requirement.startswith("nvidia-nccl-cu") for pin in resolution.pins)


def _nccl_problem(packages: Sequence[LockedPackage], resolution: Resolution) -> str | None:
    """The NVIDIA wheels show which CUDA a wheel without a local version was built for."""
    locked = [package for package in packages if re.fullmatch(r"nvidia-nccl-cu\d+", package.name)]
    if resolution.cuda is None:
        return "A CPU environment was asked for, but the lock holds NCCL." if locked else None
    families = {package.name.rpartition("-")[2] for package in locked}
    if len(families) > 1:
        return f"The lock mixes NVIDIA wheel families: {', '.join(sorted(families))}."
    if locked and resolution.nccl and locked[0].version != resolution.nccl:
        return f"The locked NCCL is {locked[0].version}, not {resolution.nccl}."
    return None


def _build_problem(torch: LockedPackage, resolution: Resolution) -> str | None:
    if torch.version != resolution.torch:
        return f"The locked pytorch is {torch.version}, not {resolution.torch}."
    if resolution.cuda is None:
        return "A CPU environment was asked for." if "cuda" in torch.build else None
    return (
        None
        if _is_wanted(torch.build, resolution)
        else f"CUDA {resolution.cuda} was asked for, but the locked build is another one."
    )


def _is_wanted(build: str, resolution: Resolution) -> bool:
    """Whether a build string is of the CUDA that was asked for: py3.11_cuda12.1_cudnn8.9.2_0, cuda126_mkl_py311_h1_304."""
    if resolution.cuda is None:
        return "cuda" not in build
    wanted = resolution.cuda if resolution.source == "pytorch" else resolution.cuda.replace(".", "")
    return re.search(rf"cuda{re.escape(wanted)}(?![\d.])", build) is not None


def cause_of(
    request: conda.SolveRequest, resolution: Resolution, solver: conda.Solver, why: PinReasons
) -> str:
    """PinReasons conda's solver could choose another build of pytorch, and what stands against the right one."""
    asked = [spec for spec in request.specs if conda.spec_name(spec) == "pytorch"]
    said = [
        f"It could: {why.listed([spec])} {'asks for it' if conda.pins_build(spec) else 'pins no build string'}."
        for spec in asked
    ]
    records = ChannelRecords(solver, request)
    known = [
        record
        for record in records.find("pytorch")
        if record.version == resolution.torch and record.visible
    ]
    right = [record for record in known if _is_wanted(record.build, resolution)]
    flavor = f"CUDA {resolution.cuda}" if resolution.cuda else "CPU"
    if not right:
        there = ", ".join(dict.fromkeys(record.build for record in known[:SHOWN])) or "none"
        said.append(
            f"No channel has a {flavor} build of pytorch {resolution.torch} for {request.platform}; the builds there: {there}."
        )
    elif fitting := [record for record in right if _fits_python(record, resolution)]:
        said.append(_against(fitting[:TRIED], request, asked, solver, why))
    else:
        builds = ", ".join(dict.fromkeys(record.build for record in right[:SHOWN]))
        said.append(
            f"No {flavor} build of pytorch {resolution.torch} there is for Python {resolution.python}: {builds}."
        )
    return " ".join(said)


def _fits_python(record: ChannelRecord, resolution: Resolution) -> bool:
    """By the build string, where every builder of pytorch writes it: py3.11_..., ..._py311_..."""
    found = re.search(r"(?:^|_)py(\d)\.?(\d+)(?:_|h|$)", record.build)
    return found is None or f"{found[1]}.{found[2]}" == resolution.python


def _against(
    fitting: Sequence[ChannelRecord],
    request: conda.SolveRequest,
    asked: Sequence[str],
    solver: conda.Solver,
    why: PinReasons,
) -> str:
    """What stands against builds that are there and right: the first that could be had is the one to pin."""
    for record in fitting:
        exact = f"{record.channel}::pytorch=={record.version}={record.build}"
        wanted = dataclasses.replace(
            request, specs=(exact, *(spec for spec in request.specs if spec not in asked))
        )
        try:
            solver.solve(wanted)
        except Unsolvable as error:
            found = explaining_conda.explain(
                error,
                wanted,
                solver,
                PinReasons({**why.reasons, exact: "the right build"}, why.otherwise),
            )
            said = f"The right build, {record.build}, could not be had: {found.message.partition(': ')[2]}"
            continue
        except ProvisionError as error:
            return f"The right build, {record.build}, could not be looked at: {error.message}"
        return f"{record.build} could be had: pin that build string."
    return said
