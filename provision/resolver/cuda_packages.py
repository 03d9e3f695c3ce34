"""Added packages that are published once for each CUDA (`cupy-cuda12x`, `jax[cuda12]`): whether theirs
is the build's, and what the one for the build's CUDA is called."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision import catalog
from provision.catalog.rules import CudaPackages
from provision.core.package_names import package_name
from provision.core.spec_fields import Spec
from provision.core.types import Choice
from provision.resolver.pins import NVIDIA_WHEEL, applicable
from provision.sources.base import Candidate

OTHER_CUDA = "other-cuda"
ENDING = re.compile(r"(?P<base>.+?)(?P<ending>-(?:cuda|cu)(?P<major>1[0-9])(?:x|\d)?)(?=-|$)")
EXTRA = re.compile(r"(?:cuda|cu)(?P<major>1[0-9])(?:x|\d)?(?=-|$)")


def warnings(spec: Spec, candidate: Candidate) -> Iterator[Choice]:
    """A warning about the packages of the request that are for another CUDA than the build.

    NVIDIA's own libraries are refused elsewhere: two families of them break each other.
    """
    if candidate.cuda is None:
        return
    major = candidate.cuda.split(".")[0]
    mismatched = []
    proposals = []
    sources = []
    for requirement in applicable(spec):
        package_major = _cuda_of(requirement)
        if package_major is None or package_major == major:
            continue
        mismatched.append(f"`{requirement}` (CUDA {package_major})")
        name, source = _for_cuda(requirement, major)
        proposals.append(f"`{name}`" if name else f"another build of `{requirement}`")
        sources.append(source)
    if mismatched:
        yield Choice(
            what=OTHER_CUDA,
            value=f"Request {', '.join(proposals)}.",
            reason=f"{', '.join(mismatched)}, and {candidate}: two CUDAs in one environment",
            source="; ".join(dict.fromkeys(sources)),
        )


def _cuda_of(requirement: str) -> str | None:
    """The major version of CUDA in a package's name or extras."""
    name, extras = _name_and_extras(requirement)
    if NVIDIA_WHEEL.fullmatch(name):
        return None
    for extra in extras:
        if match := EXTRA.match(extra):
            return match["major"]
    match = ENDING.match(name)
    return match["major"] if match else None


def _for_cuda(requirement: str, major: str) -> tuple[str | None, str]:
    """The package for a CUDA, and the source; the name is None if none is known."""
    name, extras = _name_and_extras(requirement)
    row = _table().get(name)
    if row and major in row.extras and any(EXTRA.match(extra) for extra in extras):
        return f"{name}[{row.extras[major]}]", row.source
    match = ENDING.fullmatch(name)
    row = _table().get(match["base"]) if match else None
    if match and row and major in row.endings:
        return f"{match['base']}{row.endings[major]}", row.source
    return None, "the package's name"


def _name_and_extras(requirement: str) -> tuple[str, set[str]]:
    extras = re.match(r"[^\[;@<>=!~]*\[([^\]]*)\]", requirement)
    tokens = extras[1].lower().split(",") if extras else []
    return package_name(requirement), {token.strip() for token in tokens}


@catalog.cached
def _table() -> dict[str, CudaPackages]:
    """The rows by package, without ending."""
    return {name: row for row in catalog.cuda_packages() for name in row.packages}
