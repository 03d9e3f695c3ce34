"""Libraries of CUDA that an environment has twice: as wheels of NVIDIA and as conda packages, or as wheels
for two versions of CUDA; or as a part of the base image. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from packaging.utils import canonicalize_name

from provision.core.types import LockedPackage
from provision.image.layer_groups import group_of

TORCH = ("torch", "pytorch", "libtorch")
TOOLKIT = "cudatoolkit"  # conda's whole CUDA in one package, before 12
_AFFIXES = re.compile(r"^(nvidia-)?(cuda-|lib)?|-cu\d+$")


def cuda_copies(packages: Iterable[LockedPackage]) -> str | None:
    """A sentence about the second copy of CUDA's libraries in an environment; None if there is one
    copy or none."""
    packages = list(packages)
    torch = [package for package in packages if canonicalize_name(package.name) in TORCH]
    texts = [text for package in torch for text in package.depends]
    needed = {canonicalize_name(re.split(r"[\s;<>=!~\[(]", text)[0]) for text in texts}
    managers = {package.manager for package in torch}
    cuda = [package for package in packages if group_of(package) == "cuda"]
    of_torch = [package for package in cuda if package.manager in managers]
    direct = [package for package in of_torch if canonicalize_name(package.name) in needed]
    origins = {_origin(package) for package in direct or of_torch}
    used = [package for package in cuda if _origin(package) in origins]
    unused = [package for package in cuda if _origin(package) not in origins]
    twice = set(map(_library, used)) & set(map(_library, unused))
    if not twice:
        return None
    kept, extra = (
        sorted({f"{it.name} ({it.manager})" for it in copies if _library(it) in twice})
        for copies in (used, unused)
    )
    return (
        f"the image holds CUDA libraries twice: torch uses {', '.join(kept)}, and not "
        f"{', '.join(extra)}. To drop the second copy, leave out or replace what needs it: "
        f"`provision env tree NAME {extra[0].partition(' ')[0]}` shows that"
    )


def _library(package: LockedPackage) -> str:
    name = canonicalize_name(package.name)
    return "cublas" if name == TOOLKIT else _AFFIXES.sub("", name)


def _origin(package: LockedPackage) -> str:
    """Packages of one origin are one copy: conda's, or the wheels for one CUDA (`-cu12`)."""
    suffix = re.search(r"-cu(\d+)$", canonicalize_name(package.name))
    return package.manager if suffix is None else f"{package.manager}-{suffix[1]}"


def base_cuda(variables: Iterable[str]) -> str | None:
    """The CUDA that a base image brings, by the variable that NVIDIA's bases set (KEY=VALUE)."""
    pairs = (pair.partition("=") for pair in variables)
    return next((value for key, _, value in pairs if key == "CUDA_VERSION"), None)
