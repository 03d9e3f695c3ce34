"""The Linux wheels of a project on the configured package indexes, and what they say of themselves,
without downloading any."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import BuildTag
from packaging.version import Version

from provision.adapters.http import HttpClient
from provision.adapters.uv.index_page import IndexFile
from provision.adapters.uv.index_releases import index_urls, page_files, project_url
from provision.adapters.uv.indexes import pip_settings
from provision.adapters.uv.wheel_metadata import fetch_members, fetch_metadata
from provision.core.dataclass import frozen
from provision.core.errors import Unreachable
from provision.core.mirrors import NO_MIRRORS, Mirrors
from provision.core.package_names import parse_distribution

_LINUX = re.compile(r"(manylinux|linux).*_(x86_64|aarch64)$")


@frozen
class LinuxWheel:
    """A Linux wheel for CPython, as its name describes it.

    version: with the local part, if the name has one. python: 3.13, 3.13t for free-threaded Python,
    or 3 for every Python. stable: it is for `python` and every later one. platform_tag:
    manylinux_2_28_x86_64.
    """

    name: str
    version: Version
    build: BuildTag
    python: str
    stable: bool
    platform_tag: str
    url: str
    requires_python: str

    @property
    def machine(self) -> str:
        return "aarch64" if self.platform_tag.endswith("_aarch64") else "x86_64"

    @property
    def base(self) -> str:
        return self.version.base_version

    def runs_on(self, python: str) -> bool:
        """Whether it is for a Python; requires-python counts where one wheel is for many."""
        if self.python == python:
            return True
        is_for_many = self.python == "3" or (
            self.stable and Version(python) >= Version(self.python)
        )
        return is_for_many and SpecifierSet(self.requires_python).contains(f"{python}.0")


class WheelIndex:
    """The configured indexes, or one that is named. What was read of a wheel is remembered."""

    def __init__(self, url: str | None = None, mirrors: Mirrors = NO_MIRRORS) -> None:
        self._urls = [url] if url else index_urls(None, mirrors)
        self._client = HttpClient(pip_settings())
        self._requirements: dict[str, tuple[str, ...] | None] = {}

    def __enter__(self) -> WheelIndex:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.__exit__(*exc)

    def wheels(self, project: str) -> list[LinuxWheel]:
        """Those of final releases, in the index's order; none if no index has the project. Raises
        Unreachable."""
        by_name: dict[str, LinuxWheel] = {}
        for url in self._urls:
            for wheel in linux_wheels(page_files(self._client, project_url(url, project))):
                by_name.setdefault(wheel.name, wheel)
        return list(by_name.values())

    def requirements(self, wheel: LinuxWheel) -> tuple[str, ...] | None:
        """What a wheel requires. None: it could not be read."""
        if wheel.name not in self._requirements:
            self._requirements[wheel.name] = self._read(wheel)
        return self._requirements[wheel.name]

    def members(self, wheel: LinuxWheel, *names: str) -> tuple[list[str], list[bytes]]:
        """The names of all files in a wheel, and the contents of some; none if it could not be read,
        or has not all of these."""
        try:
            return fetch_members(self._client, wheel.url, lambda _: names)
        except Unreachable:
            return [], []

    def _read(self, wheel: LinuxWheel) -> tuple[str, ...] | None:
        try:
            requires = fetch_metadata(self._client, wheel.url).requires
            for text in requires:
                Requirement(text)
        except (Unreachable, InvalidRequirement):
            return None
        return requires


def linux_wheels(files: Iterable[IndexFile]) -> Iterator[LinuxWheel]:
    """Those of the files that count: neither yanked nor of a pre-release."""
    for entry in files:
        file = parse_distribution(entry.filename)
        if file is None or entry.is_yanked or file.version.is_prerelease:
            continue
        tag = next((tag for tag in sorted(file.tags, key=str) if _LINUX.match(tag.platform)), None)
        if tag:
            yield LinuxWheel(
                name=entry.filename,
                version=file.version,
                build=file.build,
                python=_python(tag),
                stable=tag.abi == "abi3",
                platform_tag=tag.platform,
                url=entry.url,
                requires_python=entry.requires_python,
            )


def _python(tag: Tag) -> str:
    digits = tag.interpreter[2:]  # of cp313 or py3
    free = "t" if re.fullmatch(r"cp\d+t", tag.abi) else ""
    return f"{digits[:1]}.{digits[1:]}{free}" if digits[1:] else digits
