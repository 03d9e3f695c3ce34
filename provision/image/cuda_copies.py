"""Libraries of CUDA that an environment has twice: as wheels of NVIDIA and as conda packages, or as wheels
for two versions of CUDA; or as a part of the base image. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from packaging.utils import canonicalize_name

from provision.core.dataclass import dataclass
from provision.core.types import LockedPackage
from provision.image.layers import group_of

TORCH = ("torch", "pytorch", "libtorch")
TOOLKIT = "cudatoolkit"  # conda's whole CUDA in one package, before 12
_AFFIXES = re.compile(r"^(nvidia-)?(cuda-|lib)?|-cu\d+$")


@dataclass(frozen=True, kw_only=True)
class CudaCopies:
    """extra: the packages that torch does not use. requested_by: those of the environment that need
    them and that nothing else needs."""

    extra: tuple[str, ...]
    used: tuple[str, ...]
    requested_by: tuple[str, ...]

    @property
    def summary(self) -> str:
        return (
            f"the image holds CUDA libraries twice: torch uses {', '.join(self.used)}, and not "
            f"{', '.join(self.extra)}. To drop the second copy, leave out or replace "
            f"{', '.join(self.requested_by)}"
        )


def cuda_copies(packages: Iterable[LockedPackage]) -> CudaCopies | None:
    """The second copy of CUDA's libraries in an environment; None if there is one copy or none."""
    by_key: dict[Key, LockedPackage] = {
        (package.manager, canonicalize_name(package.name)): package for package in packages
    }
    needed_by_torch = _reachable(by_key, [key for key in by_key if key[1] in TORCH])
    libraries: dict[str, list[Key]] = {}
    for key, package in by_key.items():
        if group_of(package) == "cuda":
            library = "cublas" if key[1] == TOOLKIT else _AFFIXES.sub("", key[1])
            libraries.setdefault(library, []).append(key)
    extra: set[Key] = set()
    used: set[Key] = set()
    for copies in libraries.values():
        torch_copies = needed_by_torch.intersection(copies)
        origins = {_origin(key) for key in torch_copies}
        others = [key for key in copies if origins and _origin(key) not in origins]
        if others:
            used.update(torch_copies)
            extra.update(others)
    if not extra:
        return None
    needed = {key for parent in by_key for key in _needs(by_key, parent)}
    roots = [
        key for key in by_key if key not in needed and extra & (_reachable(by_key, [key]) | {key})
    ]
    return CudaCopies(
        extra=_names(extra), used=_names(used), requested_by=_names(roots or sorted(extra))
    )


def _origin(key: Key) -> str:
    """Packages of one origin are one copy: conda's, or the wheels for one CUDA (`-cu12`)."""
    manager, name = key
    suffix = re.search(r"-cu(\d+)$", name)
    return manager if suffix is None else f"{manager}-{suffix[1]}"


def base_cuda(variables: Iterable[str]) -> str | None:
    """The CUDA that a base image brings, by the variable that NVIDIA's bases set (KEY=VALUE)."""
    for pair in variables:
        key, _, value = pair.partition("=")
        if key == "CUDA_VERSION":
            return value
    return None


Key = tuple[str, str]


def _needs(packages: Mapping[Key, LockedPackage], key: Key) -> list[Key]:
    """The packages of the environment that one depends on; a wheel may use conda's."""
    manager = packages[key].manager
    needs: list[Key] = []
    for text in packages[key].depends:
        name = canonicalize_name(re.split(r"[\s;<>=!~\[(]", text, maxsplit=1)[0])
        for candidate in ((manager, name), ("conda", name)):
            if candidate in packages:
                needs.append(candidate)
                break
    return needs


def _reachable(packages: Mapping[Key, LockedPackage], roots: Sequence[Key]) -> set[Key]:
    """Packages and all that they depend on."""
    pending, reached = list(roots), set[Key]()
    while pending:
        key = pending.pop()
        if key not in reached:
            reached.add(key)
            pending += _needs(packages, key)
    return reached


def _names(keys: Iterable[Key]) -> tuple[str, ...]:
    return tuple(f"{name} ({manager})" for manager, name in sorted(keys))
