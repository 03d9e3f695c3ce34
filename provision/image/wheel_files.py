"""The wheel part of an image: what each wheel's RECORD lists, out of the realized prefix, and as it must read in the image."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import posixpath
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from provision.adapters.http import sha256_of
from provision.adapters.uv.installed_wheels import fingerprint
from provision.core.errors import IntegrityError
from provision.core.types import LockedPackage, Prefix
from provision.image.conda_files import LEFT_OUT, PREFIX, PYTHON, Entry, from_file, verify

Row = tuple[str, str, str]  # path from site-packages, hash, size
_HASH = re.compile(r"sha256=[A-Za-z0-9_-]{43}=?|(?!sha256=)[^=]+=.*|")
_SIZE = re.compile(r"[0-9]{0,18}")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a wheel says of one of its files."""

    package: LockedPackage
    row: Row


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel of the lock as it lies in the prefix. rows: its RECORD."""

    package: LockedPackage
    folder: Path  # its dist-info
    rows: tuple[Row, ...]

    @property
    def size(self) -> int:
        """Bytes of its files. Scripts, whose first line is longer or shorter from host to host, do not count."""
        return sum(
            int(size) for name, _, size in self.shipped if size and not name.startswith("../")
        )

    @property
    def shipped(self) -> list[Row]:
        """Without what is not put into images: installers' droppings, and byte code of sources that are there."""
        sources = {name for name, _, _ in self.rows if name.endswith(".py")}
        return [row for row in self.rows if not _is_left_out(row[0], sources)]


def installed(prefix: Prefix, packages: Iterable[LockedPackage], python: str) -> list[Wheel]:
    """The wheels of a lock in its prefix. IntegrityError where one is not there, or its RECORD is none."""
    site = prefix.path / "lib" / f"python{python}" / "site-packages"
    folders = {
        canonicalize_name(path.name.split("-")[0]): path
        for path in sorted(site.glob("*.dist-info"))
    }
    found = []
    for package in packages:
        folder = folders.get(canonicalize_name(package.name))
        if folder is None:
            raise _drifted(
                prefix, f"does not hold {package.name} {package.version}, which its lock names"
            )
        found.append(
            Wheel(package=package, folder=folder, rows=read_record(folder / "RECORD", prefix))
        )
        _check_wheel(prefix, folder)
    return found


def _check_wheel(prefix: Prefix, folder: Path) -> None:
    """Raise for a wheel that is not the one that was installed, though its name and version are the same."""
    if (folder / "RECORD").stat().st_mode & 0o100:
        raise _drifted(
            prefix,
            "lies on a disk where every file may be run, so that which of them should be is not known",
        )
    known = (prefix.wheels or {}).get(folder.name)
    if known is not None and known != fingerprint(folder / "RECORD"):
        raise _drifted(
            prefix,
            f"has another {folder.name.removesuffix('.dist-info')} than was installed: its RECORD, or what may be run",
        )


def clashes(wheels: Iterable[Wheel]) -> dict[str, list[Claim]]:
    """The files that several wheels list, by path, with what each says. The last claim, by the package's name, is the one that counts:
    uv installs wheels in no fixed order, and what it wrote last would be another file on each machine."""
    claims: dict[str, list[Claim]] = {}
    for wheel in sorted(wheels, key=lambda wheel: canonicalize_name(wheel.package.name)):
        for row in wheel.shipped:
            claims.setdefault(posixpath.normpath(row[0]), []).append(
                Claim(package=wheel.package, row=row)
            )
    return {path: found for path, found in claims.items() if len(found) > 1}


def sharers(
    wheels: Sequence[Wheel], clashing: Mapping[str, Sequence[Claim]]
) -> list[LockedPackage]:
    """The packages that decide files of these wheels beside themselves: those that list the same path with other bytes."""
    own = [wheel.package for wheel in wheels]
    paths = {posixpath.normpath(row[0]) for wheel in wheels for row in wheel.rows}
    claims = [
        claim
        for path in paths & clashing.keys()
        if _differ(clashing[path])
        for claim in clashing[path]
    ]
    return list(
        {claim.package.name: claim.package for claim in claims if claim.package not in own}.values()
    )


def entries(
    wheels: Sequence[Wheel], clashing: Mapping[str, Sequence[Claim]], prefix: Prefix
) -> dict[str, Entry]:
    """The files of some of the prefix's wheels, by path. One that several list, of whichever layer, must be what the last of them says."""
    return {
        entry.path: entry for wheel in wheels for entry in wheel_entries(wheel, prefix, clashing)
    }


def wheel_entries(
    wheel: Wheel, prefix: Prefix, clashing: Mapping[str, Sequence[Claim]] | None = None
) -> list[Entry]:
    """The files of one installed wheel, by its RECORD; scripts name the image's interpreter, and RECORD says so."""
    site, own_record = wheel.folder.parent, f"{wheel.folder.name}/RECORD"
    rows: list[Row] = []
    found: list[Entry] = []
    for row in wheel.shipped:
        name = row[0]
        if name == own_record:
            continue
        told = [row]
        if claims := (clashing or {}).get(posixpath.normpath(name)):
            told = [claim.row for claim in claims]
            if _differ(claims):
                _check_clash(site / name, claims, prefix)
                told = told[-1:]
        entry = _wheel_file(site / name, told, prefix)
        found.append(entry)
        rows.append((name, *_rewritten(entry)) if entry.content is not None else row)
    rows.append((own_record, "", ""))
    return [*found, Entry.of(_in_image(wheel.folder / "RECORD", prefix), _write_record(rows))]


def _differ(claims: Sequence[Claim]) -> bool:
    """Whether wheels disagree about a file."""
    return len({claim.row[1:] for claim in claims}) > 1


def _check_clash(path: Path, claims: Sequence[Claim], prefix: Prefix) -> None:
    """Raise unless a file that wheels disagree about is the one that counts."""
    last = claims[-1]
    known, names = _hex(last.row[1]), " and ".join(claim.package.name for claim in claims)
    if not known or (path.is_file() and not path.is_symlink() and sha256_of(path) not in known):
        raise IntegrityError(
            f"{names} have other bytes in the same file, {last.row[0]}; in an image it is that of {last.package.name}, the last by name, "
            f"and in the prefix {prefix.path} it is not.",
            advice="`provision env remove` it and build it again, which puts that file there; or leave one of the packages out.",
        )


def read_record(path: Path, prefix: Prefix) -> tuple[Row, ...]:
    """The rows of a RECORD, or IntegrityError."""
    shown = path.relative_to(prefix.path)
    try:
        rows = [row for row in csv.reader(io.StringIO(path.read_text(encoding="utf-8"))) if row]
    except FileNotFoundError as error:
        raise _drifted(prefix, f"lacks {shown}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise _drifted(prefix, f"has a {shown} that cannot be read ({error})") from error
    if any(len(row) != 3 for row in rows):
        raise _drifted(prefix, f"has a {shown} with rows that are not path, hash, size")
    wrong = next(
        (
            row
            for row in rows
            if "\0" in row[0] or not _HASH.fullmatch(row[1]) or not _SIZE.fullmatch(row[2])
        ),
        None,
    )
    if wrong:
        raise _drifted(
            prefix,
            f"has a {shown} that says no hash or size of {wrong[0][:200]!r}: {wrong[1][:80]!r}, {wrong[2][:20]!r}",
        )
    return tuple((row[0], row[1], row[2]) for row in rows)


def _write_record(rows: list[Row]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(sorted(rows))
    return text.getvalue().encode()


def _is_left_out(name: str, sources: Collection[str]) -> bool:
    cached = "__pycache__" in name.split("/") or (name.endswith(".pyc") and name[:-1] in sources)
    return cached or posixpath.basename(name) in LEFT_OUT


def _wheel_file(path: Path, rows: Sequence[Row], prefix: Prefix) -> Entry:
    inside = _in_image(path, prefix)
    try:
        entry = from_file(inside, path)
    except FileNotFoundError as error:
        raise _drifted(prefix, f"lacks {rows[0][0]}") from error
    hashes = frozenset(value for row in rows for value in _hex(row[1]))
    if not hashes and path.is_symlink():
        raise _drifted(
            prefix,
            f"has a link where a wheel says that a file is, {rows[0][0]}, and no hash to know it by",
        )
    sizes = frozenset(int(row[2]) for row in rows if row[2])
    if sizes and entry.size not in sizes:
        raise _drifted(
            prefix, f"has a changed {inside}: {entry.size} bytes instead of {max(sizes)}"
        )
    entry = replace(entry, hashes=hashes, sizes=sizes)
    return (
        _with_image_interpreter(entry, prefix)
        if inside.startswith(f"{PREFIX.lstrip('/')}/bin/")
        else entry
    )


def _in_image(path: Path, prefix: Prefix) -> str:
    """Where a file of the host prefix lies in the image. A RECORD that leads out of its prefix is refused."""
    relative = os.path.relpath(os.path.normpath(path), prefix.path)
    if relative.startswith(".."):
        raise _drifted(
            prefix, f"has a RECORD that names a file outside of it, {os.path.normpath(path)}"
        )
    return posixpath.join(PREFIX.lstrip("/"), relative)


def _hex(digest: str) -> tuple[str, ...]:
    """RECORD's `sha256=` and unpadded URL-safe base64 as hex; other algorithms are not compared."""
    algorithm, _, value = digest.partition("=")
    if algorithm != "sha256":
        return ()
    return (base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex(),)


def _rewritten(entry: Entry) -> tuple[str, str]:
    content = entry.content or b""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}", str(len(content))


def _with_image_interpreter(entry: Entry, prefix: Prefix) -> Entry:
    """A script that starts with the prefix's interpreter, with the image's instead; other files as they are."""
    assert entry.source is not None
    with entry.source.open("rb") as file:
        if file.read(2) != b"#!":
            return entry
    content = entry.source.read_bytes()
    verify(entry, hashlib.sha256(content).hexdigest())
    body = _body(content, prefix.path)
    if body is None:
        return entry
    rewritten = f"#!{PYTHON}\n".encode() + body
    if os.fsencode(prefix.path) in rewritten:
        raise _drifted(
            prefix,
            f"has a script that names this host's folder beyond its first line, {entry.source.name}",
        )
    return replace(
        entry,
        source=None,
        content=rewritten,
        size=len(rewritten),
        hashes=frozenset(),
        sizes=frozenset(),
    )


def _body(script: bytes, prefix: Path) -> bytes | None:
    """What follows the interpreter line that an installer wrote, or its three lines of sh where the path is too long for the
    kernel or has a space. None if the script does not start with the prefix's interpreter."""
    python = re.escape(os.fsencode(prefix)) + rb"/bin/python[0-9.]*"
    plain = rb"#!" + python + rb"[^\n]*\n"
    through_sh = rb"#!/bin/sh\n'''exec' ['\"]?" + python + rb"['\"]? [^\n]*\n' '''\n"
    match = re.match(plain + rb"|" + through_sh, script)
    return script[match.end() :] if match else None


def _drifted(prefix: Prefix, what: str) -> IntegrityError:
    return IntegrityError(
        f"The prefix {prefix.path} {what}.",
        advice="`provision env remove` it and build it again, then build the image.",
    )
