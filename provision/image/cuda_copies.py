"""Libraries of CUDA that an environment has twice: as wheels of NVIDIA and as conda packages, or as wheels
for two versions of CUDA; or as a part of the base image. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from packaging.utils import canonicalize_name

from provision.core.types import LockedPackage
from provision.image.layers import group_of

TORCH = ("torch", "pytorch", "libtorch")
TOOLKIT = "cudatoolkit"  # conda's whole CUDA in one package, before 12
_AFFIXES = re.compile(r"^(nvidia-)?(cuda-|lib)?|-cu\d+$")


def cuda_copies(packages: Iterable[LockedPackage]) -> str | None:
    """A sentence about the second copy of CUDA's libraries in an environment; None if there is one
    copy or none."""
    needed_by_torch: set[str] = set()
    torch_managers = set()
    libraries: dict[str, list[LockedPackage]] = {}
    for package in packages:
        name = canonicalize_name(package.name)
        if name in TORCH:
            torch_managers.add(package.manager)
            for text in package.depends:
                needed_by_torch.add(canonicalize_name(re.split(r"[\s;<>=!~\[(]", text)[0]))
        if group_of(package) == "cuda":
            library = "cublas" if name == TOOLKIT else _AFFIXES.sub("", name)
            libraries.setdefault(library, []).append(package)
    cuda_packages = [package for copies in libraries.values() for package in copies]
    of_torch = [package for package in cuda_packages if package.manager in torch_managers]
    direct = [package for package in of_torch if canonicalize_name(package.name) in needed_by_torch]
    origins = {_origin(package) for package in direct or of_torch}
    used: set[str] = set()
    extra: set[str] = set()
    for copies in libraries.values():
        others = [package for package in copies if _origin(package) not in origins]
        if others and len(others) < len(copies):
            extra.update(f"{package.name} ({package.manager})" for package in others)
            rest = [package for package in copies if package not in others]
            used.update(f"{package.name} ({package.manager})" for package in rest)
    if not extra:
        return None
    first = min(extra).partition(" ")[0]
    return (
        f"the image holds CUDA libraries twice: torch uses {', '.join(sorted(used))}, and not "
        f"{', '.join(sorted(extra))}. To drop the second copy, leave out or replace what needs it: "
        f"`provision env tree NAME {first}` shows that"
    )


def _origin(package: LockedPackage) -> str:
    """Packages of one origin are one copy: conda's, or the wheels for one CUDA (`-cu12`)."""
    suffix = re.search(r"-cu(\d+)$", canonicalize_name(package.name))
    return package.manager if suffix is None else f"{package.manager}-{suffix[1]}"


def base_cuda(variables: Iterable[str]) -> str | None:
    """The CUDA that a base image brings, by the variable that NVIDIA's bases set (KEY=VALUE)."""
    for pair in variables:
        key, _, value = pair.partition("=")
        if key == "CUDA_VERSION":
            return value
    return None
