"""The names of packages in requirements, addresses and file names."""

from __future__ import annotations

import re

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


def archive_stem(filename: str) -> str:
    """A conda package's file name without the archive's suffix."""
    return filename.removesuffix(".conda").removesuffix(".tar.bz2")
