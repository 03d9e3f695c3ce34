"""The written rule of layers: which packages share one, and why. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from provision.core.types import LockedPackage

LARGE = 5_000_000


@dataclass(frozen=True, kw_only=True)
class Group:
    """One layer: which packages it holds by their names, and why they share one. at_least: bytes of a wheel's files."""

    name: str
    conda: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()
    at_least: int = 0
    reason: str


# Below all of them lies the base; a package belongs to the first row that matches it. The order is from what is large and changes
# least to what is small and changes most: an engine shares a layer between images only if all below it are the same.
_CUDA = ("cuda-*", "cudatoolkit", "cudnn", "cusparselt", "nccl", "libmagma*", "magma*")
_CUDA_LIBRARIES = tuple(
    f"lib{name}*"
    for name in ("cublas", "cudnn", "cudss", "cufft", "cufile", "curand", "cusolver", "cusparse")
)
_NVIDIA_LIBRARIES = tuple(
    f"lib{name}*" for name in ("npp", "nvfatbin", "nvjitlink", "nvjpeg", "nvptxcompiler", "nvvm")
)
GROUPS = (
    Group(
        name="cuda",
        conda=(*_CUDA, *_CUDA_LIBRARIES, *_NVIDIA_LIBRARIES),
        wheels=("nvidia-*", "cuda-*"),
        reason="gigabytes, the same for each torch of one CUDA",
    ),
    Group(
        name="torch",
        conda=("pytorch", "pytorch-*", "libtorch", "triton", "torchtriton"),
        wheels=("torch", "triton"),
        reason="gigabytes, changes with torch only",
    ),
    Group(name="python", conda=("*",), reason="changes with Python's patch release"),
    Group(
        name="large",
        wheels=("*",),
        at_least=LARGE,
        reason="5 MB or more each, left alone by changes of the small ones",
    ),
    Group(name="rest", wheels=("*",), reason="small, changes often"),
    Group(name="provision", reason="changes with provision itself"),
)


def group_of(package: LockedPackage, size: int = 0) -> str:
    """The layer of a package, by the table. size: of a wheel's files."""
    name = canonicalize_name(package.name)
    for group in GROUPS:
        patterns = group.conda if package.manager == "conda" else group.wheels
        if size >= group.at_least and any(
            fnmatch.fnmatchcase(name, pattern) for pattern in patterns
        ):
            return group.name
    raise AssertionError(f"no group for {package.manager} package {name}")


def sort(
    packages: Iterable[LockedPackage], sizes: Mapping[str, int]
) -> dict[str, list[LockedPackage]]:
    """Packages by group, in the table's order; groups without packages are left out. sizes: of wheels, by their names in the lock."""
    found: dict[str, list[LockedPackage]] = {group.name: [] for group in GROUPS}
    for package in packages:
        found[
            group_of(package, sizes.get(package.name, 0) if package.manager == "pip" else 0)
        ].append(package)
    return {name: members for name, members in found.items() if members}
