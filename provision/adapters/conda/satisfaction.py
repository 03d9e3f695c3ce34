"""Whether packages satisfy each other's requirements, by rattler's own matching and without a solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rattler


@dataclass(frozen=True, kw_only=True)
class PackageBuild:
    """What is there under a name: a package, or what the machine offers (a virtual package)."""

    name: str
    version: str
    build: str = "0"
    number: int = 0
    subdir: str = "noarch"


def unsatisfied_specs(
    specs: Sequence[str], there: Mapping[str, PackageBuild], *, optional: bool = False
) -> list[tuple[str, str]]:
    """The requirements that what is there does not satisfy, each with what is wrong. `optional`: a package need not be there
    (`constrains`). A requirement that rattler does not understand is one that nothing satisfies."""
    import rattler

    found = []
    for spec in specs:
        try:
            wanted = rattler.MatchSpec(spec)
            name = str(wanted.name.normalized if wanted.name else "")
            have = there.get(name)
            if have is None:
                if not optional:
                    found.append((spec, "is not there"))
            elif not wanted.matches(_record(have)):
                found.append((spec, f"is {have.version} {have.build}".rstrip()))
        except Exception as error:
            found.append((spec, f"is no requirement ({str(error).splitlines()[0]})"))
    return found


def _record(have: PackageBuild) -> rattler.PackageRecord:
    import rattler
    from rattler.package.build_string import BuildString

    return rattler.PackageRecord(
        have.name, have.version, BuildString(have.build), have.number, have.subdir, noarch=None
    )


def is_newer(one: str, other: str) -> bool:
    """Whether a version is newer than another, as conda counts them."""
    import rattler

    try:
        return bool(rattler.Version(one) > rattler.Version(other))
    except Exception:
        return one > other
