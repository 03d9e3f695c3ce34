"""The CUDA guard: a CUDA environment never silently becomes a CPU one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from provision.errors import CheckFailed
from provision.model import LockedPackage, Resolution


def guard(packages: Sequence[LockedPackage], resolution: Resolution) -> None:
    """A CUDA environment never silently becomes a CPU one: the locked torch must be the build that was asked for."""
    name = "torch" if resolution.source == "wheels" else "pytorch"
    torch = next((package for package in packages if package.name == name), None)
    if torch is None:
        raise CheckFailed(f"The solver's answer holds no {name}.", advice="Was it removed from environment.yml by hand?")
    problem = _wheel_problem(packages, torch, resolution) if resolution.source == "wheels" else _build_problem(torch, resolution)
    if problem:
        raise CheckFailed(
            f"{problem} The solver chose {torch.name} {torch.version} {torch.build} ({torch.filename}).",
            advice="Nothing was written. Compare environment.yml with `provision render`.",
        )


def _wheel_problem(packages: Sequence[LockedPackage], torch: LockedPackage, resolution: Resolution) -> str | None:
    version, _, local = torch.version.partition("+")
    if version != resolution.torch:
        return f"The locked torch is {torch.version}, not {resolution.torch}."
    wanted = resolution.local_version.partition("+")[2]
    if (local or not resolution.needs_local_build) and local in ("", wanted):
        return _nccl_problem(packages, resolution)
    return f"The locked torch is not the {wanted} build."


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
    wanted = f"cuda{resolution.cuda}" if resolution.source == "pytorch" else f"cuda{resolution.cuda.replace('.', '')}"
    return None if wanted in torch.build else f"CUDA {resolution.cuda} was asked for, but the locked build is another one."
