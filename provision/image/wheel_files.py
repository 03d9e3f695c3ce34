"""The wheels of an image: the files that each wheel's RECORD lists, read from the prefix, as they
must be in the image."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from provision.adapters.http import sha256_of
from provision.adapters.installed_files import (
    HOST_FILES,
    hex_digest,
    record_hash,
    record_text,
    script_body,
)
from provision.adapters.uv.installer import fingerprint
from provision.core.container import PREFIX, PYTHON, WORKSPACE
from provision.core.dataclass import dataclass
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.types import LockedPackage, Prefix
from provision.image.layers import LayerEntry, file_entry, verify

RecordRow = tuple[str, str, str]  # path from site-packages, hash, size
_HASH = re.compile(r"sha256=[A-Za-z0-9_-]{43}=?|(?!sha256=)[^=]+=.*|")
_SIZE = re.compile(r"[0-9]{0,18}")


@dataclass(frozen=True, kw_only=True)
class FileOwner:
    """A wheel that lists a file, and its RECORD's row for it."""

    package: LockedPackage
    row: RecordRow


# By path, the wheels that list the same file, sorted by name. Only files with several owners.
SharedFiles = Mapping[str, Sequence[FileOwner]]


@dataclass(frozen=True, kw_only=True)
class InstalledWheel:
    """A wheel of the lock as it is installed in the prefix. folder: its dist-info. rows: of its
    RECORD."""

    package: LockedPackage
    folder: Path
    rows: tuple[RecordRow, ...]

    @property
    def size(self) -> int:
        """Bytes of its files, without scripts: their first line differs in length between hosts."""
        return sum(
            int(size) for path, _, size in self.shipped_rows if size and not path.startswith("../")
        )

    @property
    def shipped_rows(self) -> list[RecordRow]:
        """The rows of files that images get: not the files that installers left, and not the byte
        code of sources in the same wheel."""
        sources = {path for path, _, _ in self.rows if path.endswith(".py")}
        rows = []
        for row in self.rows:
            path = row[0]
            is_bytecode = path.endswith(".pyc") and path[:-1] in sources
            if is_bytecode or "__pycache__" in path.split("/"):
                continue
            if posixpath.basename(path) not in HOST_FILES:
                rows.append(row)
        return rows


def installed_wheels(
    prefix: Prefix, packages: Iterable[LockedPackage], python: str
) -> list[InstalledWheel]:
    """The wheels of a lock in its prefix. IntegrityError if one is missing, was changed, or has an
    invalid RECORD."""
    site_packages = prefix.path / "lib" / f"python{python}" / "site-packages"
    folders = {
        canonicalize_name(path.name.split("-")[0]): path
        for path in sorted(site_packages.glob("*.dist-info"))
    }
    wheels = []
    for package in packages:
        folder = folders.get(canonicalize_name(package.name))
        if folder is None:
            raise _drifted(
                prefix, f"does not hold {package.name} {package.version}, which its lock names"
            )
        rows = read_record(folder / "RECORD", prefix)
        wheels.append(InstalledWheel(package=package, folder=folder, rows=rows))
        # Raise IntegrityError for a wheel that was replaced by another of the same name and
        # version.
        if (folder / "RECORD").stat().st_mode & 0o100:
            raise _drifted(
                prefix,
                "is on a disk where every file is executable, so it is unknown which files should be",
            )
        recorded = (prefix.wheels or {}).get(folder.name)
        if recorded is not None and recorded != fingerprint(folder / "RECORD"):
            raise _drifted(
                prefix,
                f"holds a changed {folder.name.removesuffix('.dist-info')}: its RECORD, or which of its "
                "files are executable, is not as it was installed",
            )
    return wheels


# Files of several wheels


def shared_files(wheels: Iterable[InstalledWheel]) -> dict[str, list[FileOwner]]:
    """The files that several wheels list.

    The last owner, by name, decides the file's content: uv installs wheels in no fixed order, so
    the file that it wrote last differs between machines.
    """
    owners: dict[str, list[FileOwner]] = {}
    for wheel in sorted(wheels, key=lambda wheel: canonicalize_name(wheel.package.name)):
        for row in wheel.shipped_rows:
            path = posixpath.normpath(row[0])
            owners.setdefault(path, []).append(FileOwner(package=wheel.package, row=row))
    return {path: of_path for path, of_path in owners.items() if len(of_path) > 1}


def co_owners(wheels: Sequence[InstalledWheel], shared: SharedFiles) -> list[LockedPackage]:
    """The other packages that decide files of these wheels: they list the same path with other
    content, or the same source, which is then compiled by itself."""
    packages = [wheel.package for wheel in wheels]
    paths = {posixpath.normpath(row[0]) for wheel in wheels for row in wheel.rows}
    other_packages: dict[str, LockedPackage] = {}
    for path in paths & shared.keys():
        if _disagree(shared[path]) or path.endswith(".py"):
            for owner in shared[path]:
                if owner.package not in packages:
                    other_packages[owner.package.name] = owner.package
    return list(other_packages.values())


def _disagree(owners: Sequence[FileOwner]) -> bool:
    """Whether wheels list a file with different hashes or sizes."""
    return len({owner.row[1:] for owner in owners}) > 1


# Entries


def wheels_entries(
    wheels: Sequence[InstalledWheel],
    shared: SharedFiles,
    prefix: Prefix,
    code: Path | None = None,
) -> dict[str, LayerEntry]:
    """The files of some of the prefix's wheels, by path. A shared file, whichever layers its owners
    are in, must match the last owner's RECORD. code: the folder that the image has as /workspace."""
    entries = {}
    for wheel in wheels:
        for entry in wheel_entries(wheel, prefix, shared, code):
            entries[entry.path] = entry
    return entries


def wheel_entries(
    wheel: InstalledWheel,
    prefix: Prefix,
    shared: SharedFiles | None = None,
    code: Path | None = None,
) -> list[LayerEntry]:
    """The files of one installed wheel, by its RECORD. Scripts get the image's interpreter, the files
    of an editable its folder in the image, and the RECORD their new hashes."""
    site_packages = wheel.folder.parent
    project = _editable_folder(wheel, code) if wheel.package.is_editable else None
    record_name = f"{wheel.folder.name}/RECORD"
    rows: list[RecordRow] = []
    entries: list[LayerEntry] = []
    for row in wheel.shipped_rows:
        name = row[0]
        if name == record_name:
            continue
        owner_rows = [row]
        owners = (shared or {}).get(posixpath.normpath(name))
        if owners:
            owner_rows = [owner.row for owner in owners]
            if _disagree(owners):
                # Raise IntegrityError unless a file that wheels disagree about is the last
                # owner's.
                path = site_packages / name
                last = owners[-1]
                expected = hex_digest(last.row[1])
                is_other_file = (
                    path.is_file() and not path.is_symlink() and sha256_of(path) != expected
                )
                if expected is None or is_other_file:
                    names = " and ".join(owner.package.name for owner in owners)
                    raise IntegrityError(
                        f"{names} have different content for the same file, {last.row[0]}. Images get the file "
                        f"of {last.package.name}, the last by name, but the prefix {prefix.path} has another.",
                        advice="Run `provision env remove` and build it again, which installs that file; or "
                        "leave out one of the packages.",
                    )
                owner_rows = owner_rows[-1:]
        entry = _wheel_file(site_packages / name, owner_rows, prefix)
        if project is not None and code is not None:
            entry = _relocated(entry, project, code)
        entries.append(entry)
        if entry.content is not None:
            row = (name, record_hash(entry.content), str(len(entry.content)))
        rows.append(row)
    rows.append((record_name, "", ""))
    record_path = _image_path(wheel.folder / "RECORD", prefix)
    return [*entries, LayerEntry.of(record_path, record_text(sorted(rows)))]


def _editable_folder(wheel: InstalledWheel, code: Path | None) -> Path:
    """The folder of an editable package. Raises InvalidSpec if the image's code does not have it."""
    url = json.loads((wheel.folder / "direct_url.json").read_bytes())["url"]
    folder = Path(unquote(urlsplit(url).path))
    if code is None or not folder.resolve().is_relative_to(code.resolve()):
        has = f"the code of the image is {code}" if code else "the image has no code"
        raise InvalidSpec(
            f"{wheel.package.name} is an editable of {folder}, but {has}.",
            advice="Name a folder that holds both, with `code:` in spec.yml or --code; or add the "
            "package as a wheel: provision add NAME ./FOLDER",
        )
    return folder


def _relocated(entry: LayerEntry, project: Path, code: Path) -> LayerEntry:
    """A file of an editable package (a .pth, or a module that finds the package) with the project's
    folder in the image."""
    content = entry.content
    if content is None:
        assert entry.source is not None
        content = entry.source.read_bytes()
        verify(entry, hashlib.sha256(content).hexdigest())
    target = PurePosixPath(WORKSPACE, project.resolve().relative_to(code.resolve()))
    for path in {project, project.resolve()}:
        pattern = re.escape(os.fsencode(path)) + rb"(?![\w.-])"
        content = re.sub(pattern, os.fsencode(target), content)
    return _with_content(entry, content)


def _with_content(entry: LayerEntry, content: bytes) -> LayerEntry:
    return replace(entry, source=None, content=content, size=len(content), hashes=frozenset())


def _wheel_file(path: Path, rows: Sequence[RecordRow], prefix: Prefix) -> LayerEntry:
    image_path = _image_path(path, prefix)
    entry = prefix_file(image_path, path, prefix)
    digests = (hex_digest(row[1]) for row in rows)
    hashes = frozenset(digest for digest in digests if digest is not None)
    if not hashes and path.is_symlink():
        raise _drifted(
            prefix,
            f"has a link where a wheel has a file, {rows[0][0]}, and no hash to check it by",
        )
    sizes = {int(row[2]) for row in rows if row[2]}
    if sizes and entry.size not in sizes:
        raise _drifted(
            prefix, f"has a changed {image_path}: {entry.size} bytes instead of {max(sizes)}"
        )
    entry = replace(entry, hashes=hashes)
    if image_path.startswith(f"{PREFIX.lstrip('/')}/bin/"):
        return _with_image_interpreter(entry, prefix)
    return entry


def prefix_file(image_path: str, path: Path, prefix: Prefix) -> LayerEntry:
    """A file of the prefix. Raises IntegrityError if it is gone."""
    try:
        return file_entry(image_path, path)
    except FileNotFoundError as error:
        raise _drifted(prefix, f"lacks {os.path.relpath(path, prefix.path)}") from error


def _image_path(path: Path, prefix: Prefix) -> str:
    """The path in the image of a file of the host's prefix. Raises IntegrityError for a path outside
    of the prefix."""
    relative = os.path.relpath(os.path.normpath(path), prefix.path)
    if relative.startswith(".."):
        raise _drifted(
            prefix, f"has a RECORD that names a file outside of it, {os.path.normpath(path)}"
        )
    return posixpath.join(PREFIX.lstrip("/"), relative)


def _with_image_interpreter(entry: LayerEntry, prefix: Prefix) -> LayerEntry:
    """A script that starts with the prefix's interpreter, changed to the image's; other files
    unchanged."""
    assert entry.source is not None
    with entry.source.open("rb") as file:
        if file.read(2) != b"#!":
            return entry
    content = entry.source.read_bytes()
    verify(entry, hashlib.sha256(content).hexdigest())
    body = script_body(content, prefix.path)
    if body is None:
        return entry
    rewritten = f"#!{PYTHON}\n".encode() + body
    if os.fsencode(prefix.path) in rewritten:
        raise _drifted(
            prefix,
            f"has a script that names this host's folder after its first line, {entry.source.name}",
        )
    return _with_content(entry, rewritten)


# RECORD


def read_record(path: Path, prefix: Prefix) -> tuple[RecordRow, ...]:
    """The rows of a RECORD, or IntegrityError."""
    record_path = path.relative_to(prefix.path)
    try:
        rows = [row for row in csv.reader(io.StringIO(path.read_text(encoding="utf-8"))) if row]
    except FileNotFoundError as error:
        raise _drifted(prefix, f"lacks {record_path}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise _drifted(prefix, f"has a {record_path} that cannot be read ({error})") from error
    record: list[RecordRow] = []
    for row in rows:
        if len(row) != 3:
            raise _drifted(prefix, f"has a {record_path} with rows that are not path, hash, size")
        name, digest, size = row
        if "\0" in name or not _HASH.fullmatch(digest) or not _SIZE.fullmatch(size):
            raise _drifted(
                prefix,
                f"has a {record_path} with an invalid hash or size of {name[:200]!r}: "
                f"{digest[:80]!r}, {size[:20]!r}",
            )
        record.append((name, digest, size))
    return tuple(record)


def _drifted(prefix: Prefix, problem: str) -> IntegrityError:
    return IntegrityError(
        f"The prefix {prefix.path} {problem}.",
        advice="Run `provision env remove` and build it again, then build the image.",
    )
