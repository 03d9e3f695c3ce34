"""The CUDA guard: a CUDA environment never silently becomes a CPU one, and has one torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from provision import sources
from provision.adapters import conda
from provision.core.errors import CheckFailed, Unsolvable
from provision.core.types import LockedPackage, Resolution


def guard(packages: Sequence[LockedPackage], resolution: Resolution, cause: str = "") -> None:
    """Raise CheckFailed, with the chosen record, unless the locked torch of one platform is the
    requested build. cause: why it may be another one.
    """
    source = sources.by_name(resolution.source)
    name = source.torch_package
    torch = next((package for package in packages if package.name == name), None)
    if torch is None:
        problem = f"The solver's answer has no {name}."
    else:
        mismatch = source.locked_torch_problem(packages, torch, resolution)
        if mismatch is None:
            return
        record = f"{torch.name} {torch.version} {torch.build}".rstrip()
        problem = f"{mismatch} The solver chose {record} ({torch.filename}, {torch.platform})."
    raise CheckFailed(
        f"{problem} {cause}".rstrip(),
        advice=(
            "Nothing was written. `provision matrix explain` shows which build was requested, and why."
        ),
    )


def refuse_second_torch(packages: Sequence[LockedPackage], resolution: Resolution) -> None:
    """Raise Unsolvable if a requested conda package brings conda's own torch, and torch is to be a
    wheel: both would write the same files."""
    if sources.by_name(resolution.source).manager == "conda":
        return
    depends = {package.name: package.needs for package in packages if package.manager == "conda"}
    conda_torch = conda.TORCH_PACKAGES & depends.keys()
    if not conda_torch:
        return
    requested = [conda.spec_name(text) for text in resolution.spec.conda]
    culprits = [name for name in requested if _needs(name, conda_torch, depends)] or sorted(
        conda_torch
    )
    wheels = " ".join(f"--pip {conda.as_wheel(name)}" for name in culprits)
    raise Unsolvable(
        f"conda's {', '.join(culprits)} needs conda's own {sorted(conda_torch)[-1]}, and torch "
        f"{resolution.torch} of this request is a wheel: both would write the same files.",
        advice=f"Take it as a wheel: `{wheels}`, or `pip:` instead of `conda:` in spec.yml.",
    )


def _needs(name: str, targets: Collection[str], depends: Mapping[str, Sequence[str]]) -> bool:
    """Whether a package is one of some packages, or requires one of them."""
    pending, visited = [name], set[str]()
    while pending:
        current = pending.pop()
        if current in targets:
            return True
        if current not in visited:
            visited.add(current)
            pending += depends.get(current, ())
    return False
