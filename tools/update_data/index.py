"""One package index: the files of a project, and the metadata of a file without the file."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import requests
from packaging.metadata import parse_email
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import BuildTag, InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from pypi_simple import PYPI_SIMPLE_ENDPOINT, DistributionPackage, NoSuchProjectError, PyPISimple
from remotezip import RemoteZip, RemoteZipError

from provision.adapters.uv import TORCH_INDEX, index_settings
from provision.core.errors import Unreachable

READERS = 8
TIMEOUT_S = 60
UNREADABLE = (RemoteZipError, requests.RequestException, zipfile.BadZipFile, ValueError)


@dataclass(frozen=True, kw_only=True)
class File:
    """A Linux wheel for CPython, as its name describes it."""

    name: str
    version: Version  # with the local part, if the name has one
    build: BuildTag
    python: str  # 3.13, or 3.13t for free-threaded Python; 3 where one wheel is for every Python
    stable: bool  # it is for `python` and every later one
    platform_tag: str  # manylinux_2_28_x86_64
    package: DistributionPackage

    @property
    def machine(self) -> str:
        return "aarch64" if self.platform_tag.endswith("_aarch64") else "x86_64"

    @property
    def base(self) -> str:
        return self.version.base_version

    def runs_on(self, python: str) -> bool:
        """Whether this wheel is for a Python version; requires-python counts where one wheel is for
        many."""
        if self.python == python:
            return True
        is_for_many = self.python == "3" or (
            self.stable and Version(python) >= Version(self.python)
        )
        return is_for_many and SpecifierSet(self.package.requires_python or "").contains(
            f"{python}.0"
        )


@dataclass(frozen=True, kw_only=True)
class Content:
    """What was read of a wheel. names is None where the index has metadata files but no ranged
    reads."""

    requirements: tuple[str, ...]
    names: tuple[str, ...] | None


class Index:
    """A simple index. Answers are cached: a run reads each thing once."""

    def __init__(self, endpoint: str) -> None:
        self._client = PyPISimple(endpoint=endpoint)
        self._contents: dict[str, Content | None] = {}

    def files(self, project: str) -> list[File]:
        """Linux wheels of final releases, in the index's order; none if the index does not have the
        project."""
        try:
            page = self._client.get_project_page(project, timeout=TIMEOUT_S)
        except NoSuchProjectError:
            return []
        except (requests.RequestException, ValueError) as error:
            raise Unreachable(
                f"The package index did not answer about {project}: {type(error).__name__}."
            ) from error
        return list(_wheels(page.packages))

    def read(self, files: Iterable[File]) -> None:
        """Read many at once, for `content` to return."""
        unread = [file for file in files if file.name not in self._contents]
        with ThreadPoolExecutor(READERS) as pool:
            for file, content in zip(unread, pool.map(self._read, unread)):
                self._contents[file.name] = content

    def content(self, file: File) -> Content | None:
        """None: it could not be read."""
        self.read([file])
        return self._contents[file.name]

    def piece(self, file: File, name: str) -> bytes | None:
        """One file out of a wheel, by ranged reads. None: it could not be read, or is not in there."""
        try:
            with self._open(file) as archive:
                return bytes(archive.read(name)) if name in archive.namelist() else None
        except UNREADABLE:
            return None

    def _open(self, file: File) -> RemoteZip:
        return RemoteZip(
            file.package.url, session=self._client.s, support_suffix_range=False, timeout=TIMEOUT_S
        )

    def _read(self, file: File) -> Content | None:
        return self._read_ranges(file) or self._read_metadata_file(file)

    def _read_ranges(self, file: File) -> Content | None:
        """The end of the archive has the names in it, and then the metadata is a small piece
        (remotezip)."""
        try:
            with self._open(file) as archive:
                names = tuple(archive.namelist())
                (metadata,) = (
                    name
                    for name in names
                    if name.endswith(".dist-info/METADATA") and name.count("/") == 1
                )
                return Content(requirements=_requirements(archive.read(metadata)), names=names)
        except UNREADABLE:
            return None

    def _read_metadata_file(self, file: File) -> Content | None:
        """PEP 658: the metadata as a file of its own."""
        if not file.package.has_metadata:
            return None
        try:
            verify = bool(file.package.metadata_digests)
            text = self._client.get_package_metadata_bytes(
                file.package, verify=verify, timeout=TIMEOUT_S
            )
        except (requests.RequestException, ValueError):
            return None
        return Content(requirements=_requirements(text), names=None)


def configured(url: str | None = None) -> Index:
    """The index that pip or uv is configured to use, else their default."""
    return Index(url or index_settings().default_index or PYPI_SIMPLE_ENDPOINT)


def torch_index(tag: str) -> Index | None:
    """PyTorch's own wheel index, if the user has named it: the folder of one build."""
    base = os.environ.get(TORCH_INDEX)
    return Index(f"{base.rstrip('/')}/{tag}/") if base else None


def _wheels(packages: Iterable[DistributionPackage]) -> Iterator[File]:
    for package in packages:
        if package.package_type != "wheel" or package.is_yanked:
            continue
        try:
            _, version, build, tags = parse_wheel_filename(package.filename)
        except (InvalidWheelFilename, InvalidVersion):
            continue
        tag = next((tag for tag in sorted(tags, key=str) if _is_linux(tag.platform)), None)
        if tag and not version.is_prerelease:
            yield File(
                name=package.filename,
                version=version,
                build=build,
                python=_python(tag),
                stable=tag.abi == "abi3",
                platform_tag=tag.platform,
                package=package,
            )


def _python(tag: Tag) -> str:
    digits = tag.interpreter[2:]  # of cp313 or py3
    free = "t" if re.fullmatch(r"cp\d+t", tag.abi) else ""
    return f"{digits[:1]}.{digits[1:]}{free}" if digits[1:] else digits


def _is_linux(platform: str) -> bool:
    return platform.startswith(("manylinux", "linux")) and platform.endswith(
        ("_x86_64", "_aarch64")
    )


def _requirements(metadata: bytes) -> tuple[str, ...]:
    raw, _ = parse_email(metadata)
    return tuple(raw.get("requires_dist", []))
