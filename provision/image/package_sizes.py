"""How large the packages of an image are, by the files that its layers hold, and how two images differ."""

from __future__ import annotations

import csv
import io
import posixpath
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from provision.core.container import PREFIX, WORKSPACE
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError
from provision.core.json_text import parse_json
from provision.image.contents import read_files

_PREFIX = PREFIX.lstrip("/")
_CONDA_RECORD = re.compile(rf"{_PREFIX}/conda-meta/[^/]+\.json")
_WHEEL_RECORD = re.compile(rf"({_PREFIX}/lib/python[^/]+/site-packages)/([^/]+)\.dist-info/RECORD")
_RECORDS = re.compile(f"{_CONDA_RECORD.pattern}|{_WHEEL_RECORD.pattern}")
_BYTE_CODE = re.compile(r"(.*/)?__pycache__/([^/]+)\.[^./]+\.pyc")


class ImagePackage(NamedTuple):
    """A package of an image; files that no package lists are one package too. manager: conda, pip or
    other."""

    manager: str
    name: str
    version: str = ""


@frozen
class PackageChange:
    """How a package differs between two images; versions are empty, and sizes 0, where it is not."""

    manager: str
    name: str
    before: str
    after: str
    size_before: int
    size_after: int

    @property
    def growth(self) -> int:
        return self.size_after - self.size_before

    @property
    def versions(self) -> str:
        if self.before == self.after:
            return self.before
        return f"{self.before or 'none'} -> {self.after or 'none'}"


Sizes = Mapping[ImagePackage, int]


def package_sizes(blobs: Sequence[Path]) -> Sizes:
    """Bytes of each package of an image, uncompressed. Byte code belongs to its source's package.

    blobs: its layers. Raises IntegrityError if one is not an archive.
    """
    contents = read_files(blobs, _RECORDS, noticed=re.compile(".*"))
    owners: dict[str, ImagePackage] = {}
    for path, content in contents.files.items():
        package, files = _listed_files(path, content)
        owners |= dict.fromkeys(files, package)
    sizes: Counter[ImagePackage] = Counter()
    for path, size in contents.noticed.items():
        source = _BYTE_CODE.sub(r"\1\2.py", path)
        sizes[owners.get(path) or owners.get(source) or _remainder(path)] += size
    return sizes


def _listed_files(path: str, content: bytes) -> tuple[ImagePackage, list[str]]:
    """The package of a record, and the files that it lists."""
    wheel = _WHEEL_RECORD.fullmatch(path)
    if wheel is None:
        try:
            record = parse_json(content)
            package = ImagePackage("conda", record["name"], record["version"])
            return package, [path, *(f"{_PREFIX}/{file}" for file in record["files"])]
        except (ValueError, KeyError, TypeError) as error:
            raise IntegrityError(
                f"/{path} of the image is not conda's record of a package.",
                advice="Build or pull the image again.",
            ) from error
    name, _, version = wheel[2].partition("-")
    package = ImagePackage("pip", name.replace("_", "-").lower(), version)
    rows = csv.reader(io.StringIO(content.decode(errors="replace")))
    return package, [posixpath.normpath(f"{wheel[1]}/{row[0]}") for row in rows if row]


def _remainder(path: str) -> ImagePackage:
    for folder, name in ((_PREFIX, "environment"), (WORKSPACE.lstrip("/"), "workspace")):
        if path == folder or path.startswith(f"{folder}/"):
            return ImagePackage("other", f"{name}'s other files")
    return ImagePackage("other", "base image")


def compare(before: Sizes, after: Sizes) -> tuple[PackageChange, ...]:
    """The packages whose version or size differs, those that grew most first."""
    old = {package[:2]: (package.version, size) for package, size in before.items()}
    new = {package[:2]: (package.version, size) for package, size in after.items()}
    changes = []
    for key in old.keys() | new.keys():
        version_before, size_before = old.get(key, ("", 0))
        version_after, size_after = new.get(key, ("", 0))
        if (version_before, size_before) != (version_after, size_after):
            change = PackageChange(
                manager=key[0],
                name=key[1],
                before=version_before,
                after=version_after,
                size_before=size_before,
                size_after=size_after,
            )
            changes.append(change)
    return tuple(sorted(changes, key=lambda row: (-row.growth, row.manager, row.name)))
