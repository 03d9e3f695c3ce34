"""The names of packages in requirements, addresses and file names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from packaging.tags import Tag
    from packaging.utils import BuildTag
    from packaging.version import Version

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def requirement_name(requirement: str) -> str:
    """The name in a requirement of conda or pip, as it is written; empty without one."""
    match = _NAME.match(requirement.rpartition("::")[2].strip())
    return match[0] if match else ""


def package_name(requirement: str) -> str:
    """The same, canonical."""
    from packaging.utils import canonicalize_name

    return canonicalize_name(requirement_name(requirement))


def url_filename(url: str) -> str:
    """The file that an address names."""
    return url.partition("#")[0].partition("?")[0].rpartition("/")[2]


class DistributionFile(NamedTuple):
    """What the name of a wheel or of a source archive says. tags: of a wheel."""

    name: str
    version: Version
    build: BuildTag = ()
    tags: frozenset[Tag] = frozenset()


def parse_distribution(filename: str) -> DistributionFile | None:
    """The name, canonical, and the rest of what a file's name says; None for any other file."""
    from packaging.utils import parse_sdist_filename, parse_wheel_filename

    try:
        if filename.endswith(".whl"):
            return DistributionFile(*parse_wheel_filename(filename))
        return DistributionFile(*parse_sdist_filename(filename))
    except ValueError:
        return None


def wheel_variant(filename: str) -> str:
    """The variant label in a wheel's name (PEP 825, a draft), behind the platform; else empty."""
    parts = filename.removesuffix(".whl").split("-")
    if len(parts) > 2 and parts[2][:1].isdigit():
        del parts[2]  # the build tag
    return parts[5] if len(parts) == 6 else ""


def is_pep440(version: str) -> bool:
    """Whether a text is a version as wheels have them."""
    from packaging.version import InvalidVersion, Version

    try:
        Version(version)
    except InvalidVersion:
        return False
    return True


def archive_stem(filename: str) -> str:
    """A conda package's file name without the archive's suffix."""
    return filename.removesuffix(".conda").removesuffix(".tar.bz2")
