"""Channels and requirements as conda writes them, and whether packages satisfy requirements: by
rattler's own rules and without a solver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.mirrors import ALL_CHANNELS
from provision.core.package_names import requirement_name
from provision.core.types import LockedPackage


def spec_errors(specs: Iterable[str]) -> list[str]:
    """The mistakes in conda requirements, one sentence each."""
    import rattler

    errors = []
    for spec in specs:
        try:
            rattler.MatchSpec(spec)
        except Exception as error:
            errors.append(f"`{spec}` is not a conda requirement: {_first_line(error)}.")
    return errors


@frozen
class CondaRequirement:
    """A requirement of conda in its parts; empty where it does not say one. version: with its
    operators, as in `>=1.2,<2` or `1.2.*`."""

    name: str
    version: str = ""
    build: str = ""
    channel: str = ""


def parse_requirement(spec: str) -> CondaRequirement:
    """A requirement as conda reads it, in any of its forms.

    Raises ValueError for what is none.
    """
    import rattler

    try:
        matchspec = rattler.MatchSpec(spec, strict=False)
    except Exception as error:
        raise ValueError(_first_line(error)) from error
    if matchspec.name is None:
        raise ValueError("it names no package")
    return CondaRequirement(
        name=spec_name(spec),
        version="" if matchspec.version in (None, "*") else str(matchspec.version),
        build=matchspec.build or "",
        channel=spec.rpartition("::")[0].strip(),
    )


def as_wheel(spec: str) -> str:
    """A requirement of conda in the words of pip; its build is left out."""
    parts = parse_requirement(spec)
    version = parts.version
    if version.endswith(".*") and version[0].isdigit():
        version = f"=={version}"
    return f"{parts.name.replace('_', '-')}{version}"


def spec_name(spec: str) -> str:
    """The name of the package that a requirement is for."""
    return requirement_name(spec).lower()


def without_version(spec: str) -> str:
    """The same package from the same channel, in any version."""
    channel, separator, _ = spec.rpartition("::")
    return f"{channel}{separator}{spec_name(spec)}"


def unsatisfied(spec: str, packages: Mapping[str, LockedPackage]) -> str:
    """Why packages, by name, do not satisfy a requirement; empty if they do. A virtual package stands
    for what the machine offers.

    Nothing satisfies a requirement that rattler does not understand.
    """
    import rattler
    from rattler.package.build_string import BuildString

    try:
        matchspec = rattler.MatchSpec(spec)
        package = packages.get(str(matchspec.name.normalized if matchspec.name else ""))
        if package is None:
            return "is not there"
        build = BuildString(package.build)
        record = rattler.PackageRecord(
            package.name, package.version, build, 0, "noarch", noarch=None
        )
        if matchspec.matches(record):
            return ""
        return f"is {package.version} {package.build}".rstrip()
    except Exception as error:
        return f"is not a requirement ({_first_line(error)})"


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


@cache
def channel_url(channel: str) -> str:
    """A channel's own URL, which ends with a slash, by rattler's rules: names under its alias,
    paths as file URLs.

    For `*`, the alias.
    """
    import rattler

    if channel == ALL_CHANNELS:
        return channel_url("conda-forge").removesuffix("conda-forge/")
    try:
        return rattler.Channel(channel).base_url.rstrip("/") + "/"
    except Exception as error:
        reason = " ".join(str(error).split())
        raise InvalidSpec(f"`{channel}` is not a channel: {reason}.") from error
