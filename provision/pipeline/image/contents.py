"""What goes into an image: which files, from where, and to which group of layers each belongs.

The conda part comes from a folder that was linked for the image (paths inside its files name /opt/env); the wheel part
from the realized prefix, by each wheel's RECORD; our own part from `inside/`. Nothing here writes.
"""

from __future__ import annotations

import base64
import csv
import fnmatch
import hashlib
import io
import json
import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from provision.errors import IntegrityError, StaleLock
from provision.model import LockedPackage, Manager, Prefix
from provision.pipeline.image.tar import Kind

PREFIX = "/opt/env"
PYTHON = f"{PREFIX}/bin/python"
INSIDE = "/opt/provision/inside"
ENTRY = "/usr/local/bin/provision-smoke"
WORKSPACE = "/workspace"

ENTRY_SCRIPT = f'#!/bin/sh\n# The smoke test of this environment: provision-smoke --out DIR\nexec {PYTHON} {INSIDE} smoke "$@"\n'


@dataclass(frozen=True, kw_only=True)
class Group:
    """One layer: which packages it holds, and why they share one."""

    name: str
    manager: Manager | None
    packages: tuple[str, ...]
    reason: str


# The written rule. Below all of them lies the base; a package belongs to the first row that matches it. The order is from
# what changes least to what changes most: an engine shares a layer between images only if all below it are the same.
GROUPS = (
    Group(name="python", manager="conda", packages=("*",), reason="changes with Python's patch release"),
    Group(
        name="cuda",
        manager="pip",
        packages=("nvidia-*", "cuda-*"),
        reason="2.5 GB, the same for each torch of one CUDA",
    ),
    Group(name="torch", manager="pip", packages=("torch", "triton"), reason="1.5 GB, changes with torch only"),
    Group(name="rest", manager="pip", packages=("*",), reason="small, changes often"),
    Group(name="provision", manager=None, packages=(), reason="changes with provision itself"),
)

# What installers leave for themselves and what differs between hosts: a cache marker, where a wheel came from. Byte code is
# left out too: its header holds its source's time.
LEFT_OUT = frozenset({"CACHEDIR.TAG", "direct_url.json", "uv_cache.json", "uv_build.json"})
_HOST_KEYS = ("extracted_package_dir", "package_tarball_full_path", "link")

# Files up to this size are compared with the hash in their wheel's RECORD: these are the ones that people edit. Larger ones
# are compared by size, so that nothing big is hashed twice.
VERIFIED_SIZE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One member of a layer. A file has either a `source` on this host or its `content`."""

    path: str  # in the image, without the leading slash
    kind: Kind = "file"
    mode: int = 0o644
    size: int = 0
    source: Path | None = None
    content: bytes | None = None
    target: str = ""
    # Of a wheel's file: what RECORD says. Several, because wheels share files (each nvidia wheel has nvidia/__init__.py).
    hashes: frozenset[str] = frozenset()
    sizes: frozenset[int] = frozenset()

    @staticmethod
    def of(path: str, content: bytes, *, executable: bool = False) -> Entry:
        return Entry(path=path.lstrip("/"), content=content, size=len(content), mode=0o755 if executable else 0o644)


def group_of(package: LockedPackage) -> str:
    """The layer of a package, by the table."""
    name = canonical(package.name)
    for group in GROUPS:
        if group.manager == package.manager and any(fnmatch.fnmatchcase(name, pattern) for pattern in group.packages):
            return group.name
    raise AssertionError(f"no group for {package.manager} package {name}")


def canonical(name: str) -> str:
    """A package name as PEP 503 compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def gather(staging: Path, prefix: Prefix, wheels: Iterable[LockedPackage], python: str, own: Iterable[Entry]) -> dict[str, list[Entry]]:
    """All entries of an image by group, in the table's order, sorted by path; groups without files are left out."""
    found: dict[str, dict[str, Entry]] = {group.name: {} for group in GROUPS}
    for entry in conda_entries(staging):
        found["provision" if entry.path.endswith("/conda-meta/history") else "python"][entry.path] = entry
    _add_wheels(found, prefix, wheels, python)
    found["provision"].update({entry.path: entry for entry in own})
    return {name: [entries[path] for path in sorted(entries)] for name, entries in found.items() if entries}


def conda_entries(staging: Path) -> Iterator[Entry]:
    """Every file and link below the folder that the conda packages were linked into."""
    root = PREFIX.lstrip("/")
    for path in _walk(staging):
        relative = path.relative_to(staging).as_posix()
        inside = f"{root}/{relative}"
        if path.is_symlink():
            yield Entry(path=inside, kind="link", mode=0o777, target=_checked_target(str(path.readlink()), inside))
        elif not path.is_file():
            raise IntegrityError(f"{relative} in a conda package is neither a file nor a link, so it is not put into an image.")
        elif relative.startswith("conda-meta/") and relative.endswith(".json"):
            yield Entry.of(inside, without_host_paths(path.read_text(encoding="utf-8")))
        else:
            yield _from_file(inside, path)


def own_entries(inside: Path) -> list[Entry]:
    """What provision itself adds: the code of the smoke test, its command, and a folder that any user may write to."""
    entries = [Entry.of(f"{INSIDE}/{path.relative_to(inside).as_posix()}", path.read_bytes()) for path in _walk(inside) if path.is_file()]
    entries.append(Entry.of(ENTRY, ENTRY_SCRIPT.encode(), executable=True))
    entries.append(Entry(path=WORKSPACE.lstrip("/"), kind="folder", mode=0o1777))
    return sorted(entries, key=lambda entry: entry.path)


def without_host_paths(text: str) -> bytes:
    """A conda-meta record without the keys that say where this host keeps its package cache and local channels."""
    record = {key: value for key, value in json.loads(text).items() if key not in _HOST_KEYS}
    for key in ("url", "channel"):
        if str(record.get(key, "")).startswith("file:"):
            record[key] = _without_folder(str(record[key]), keep=2 if key == "url" else 0)
    return (json.dumps(record, indent=2, sort_keys=True) + "\n").encode()


def _without_folder(url: str, *, keep: int) -> str:
    """A local channel's address by its last parts only (subdir and file name)."""
    parts = url.split("/")
    return "/".join(["file:///local-channel", *parts[len(parts) - keep :]])


def _add_wheels(found: dict[str, dict[str, Entry]], prefix: Prefix, wheels: Iterable[LockedPackage], python: str) -> None:
    site = prefix.path / "lib" / f"python{python}" / "site-packages"
    installed = {canonical(path.name.split("-")[0]): path for path in sorted(site.glob("*.dist-info"))}
    for package in wheels:
        folder = installed.get(canonical(package.name))
        if folder is None:
            raise _drifted(prefix, f"does not hold {package.name} {package.version}, which its lock names")
        entries = found[group_of(package)]
        for entry in wheel_entries(folder, prefix):
            entries[entry.path] = _merged(entry, entries.get(entry.path))
    for entry in (entry for entries in found.values() for entry in entries.values()):
        if entry.sizes and entry.size not in entry.sizes:
            raise _drifted(prefix, f"has a changed {entry.path}: {entry.size} bytes instead of {max(entry.sizes)}")


def _merged(entry: Entry, other: Entry | None) -> Entry:
    """One file that two wheels list: what is on disk must be what either of them says."""
    if other is None:
        return entry
    return replace(entry, hashes=entry.hashes | other.hashes, sizes=entry.sizes | other.sizes)


def wheel_entries(folder: Path, prefix: Prefix) -> list[Entry]:
    """The files of one installed wheel, by its RECORD; scripts name the image's interpreter, and RECORD says so."""
    site = folder.parent
    own_record = f"{folder.name}/RECORD"
    rows: list[list[str]] = []
    entries: list[Entry] = []
    for name, digest, size in _read_record(folder / "RECORD", prefix):
        if name == own_record or _is_left_out(name):
            continue
        entry = _wheel_file(site / name, name, digest, size, prefix)
        entries.append(entry)
        rows.append([name, *_rewritten(entry)] if entry.content is not None else [name, digest, size])
    rows.append([own_record, "", ""])
    record = Entry.of(_in_image(folder / "RECORD", prefix), _write_record(rows))
    return [*entries, record]


def _read_record(path: Path, prefix: Prefix) -> list[tuple[str, str, str]]:
    try:
        rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"))))
    except FileNotFoundError as error:
        raise _drifted(prefix, f"lacks {path.relative_to(prefix.path)}") from error
    if any(len(row) != 3 for row in rows if row):
        raise _drifted(prefix, f"has a {path.relative_to(prefix.path)} with rows that are not path, hash, size")
    return [(row[0], row[1], row[2]) for row in rows if row]


def _write_record(rows: list[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(sorted(rows))
    return text.getvalue().encode()


def _is_left_out(name: str) -> bool:
    return name.endswith(".pyc") or "__pycache__" in name.split("/") or posixpath.basename(name) in LEFT_OUT


def _wheel_file(path: Path, name: str, digest: str, size: str, prefix: Prefix) -> Entry:
    inside = _in_image(path, prefix)
    try:
        entry = _from_file(inside, path)
    except FileNotFoundError as error:
        raise _drifted(prefix, f"lacks {name}") from error
    entry = replace(entry, hashes=_hex(digest), sizes=frozenset({int(size)} if size.isdigit() else ()))
    return _with_image_interpreter(entry, prefix) if inside.startswith(f"{PREFIX.lstrip('/')}/bin/") else entry


def _in_image(path: Path, prefix: Prefix) -> str:
    """Where a file of the host prefix lies in the image. A RECORD that leads out of its prefix is refused."""
    relative = os.path.relpath(os.path.normpath(path), prefix.path)
    if relative.startswith(".."):
        raise _drifted(prefix, f"has a RECORD that names a file outside of it, {os.path.normpath(path)}")
    return posixpath.join(PREFIX.lstrip("/"), relative)


def _hex(digest: str) -> frozenset[str]:
    """RECORD's `sha256=` and unpadded URL-safe base64 as hex; other algorithms are not compared."""
    algorithm, _, value = digest.partition("=")
    if algorithm != "sha256":
        return frozenset()
    return frozenset({base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()})


def _rewritten(entry: Entry) -> list[str]:
    content = entry.content or b""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return [f"sha256={digest}", str(len(content))]


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
        raise _drifted(prefix, f"has a script that names this host's folder beyond its first line, {entry.source.name}")
    return replace(entry, source=None, content=rewritten, size=len(rewritten), hashes=frozenset(), sizes=frozenset())


def _body(script: bytes, prefix: Path) -> bytes | None:
    """What follows the interpreter line that an installer wrote, or its three lines of sh where the path is too long for the
    kernel or has a space. None if the script does not start with the prefix's interpreter."""
    python = re.escape(os.fsencode(prefix)) + rb"/bin/python[0-9.]*"
    plain = rb"#!" + python + rb"[^\n]*\n"
    through_sh = rb"#!/bin/sh\n'''exec' ['\"]?" + python + rb"['\"]? [^\n]*\n' '''\n"
    match = re.match(plain + rb"|" + through_sh, script)
    return script[match.end() :] if match else None


def verify(entry: Entry, digest: str) -> None:
    """Raise if a wheel's file is not what any RECORD that lists it says."""
    if entry.hashes and digest not in entry.hashes:
        raise IntegrityError(
            f"{entry.source} was changed after it was installed: its hash is not the one in its wheel's RECORD.",
            advice="Run `provision env create` again, then build the image.",
        )


def check_prefix(prefix: Prefix, lock_sha256: str) -> None:
    """Raise if a prefix was not made from this lock."""
    if prefix.lock_sha256 != lock_sha256:
        raise StaleLock(
            f"The prefix {prefix.path} was made from another lock ({prefix.lock_sha256[:12]}, not {lock_sha256[:12]}).",
            advice="Run `provision env create` first, then build the image.",
        )


def _drifted(prefix: Prefix, what: str) -> IntegrityError:
    return IntegrityError(f"The prefix {prefix.path} {what}.", advice="Run `provision env create` again, then build the image.")


def _from_file(inside: str, path: Path) -> Entry:
    status = path.stat()
    return Entry(path=inside, mode=0o755 if status.st_mode & 0o100 else 0o644, size=status.st_size, source=path)


def _checked_target(target: str, path: str) -> str:
    if target.startswith("/") and not target.startswith(f"{PREFIX}/"):
        raise IntegrityError(f"/{path} in a conda package links to {target} on the host, so it is not put into an image.")
    return target


def _walk(folder: Path) -> Iterator[Path]:
    """Everything below a folder but folders themselves, byte code and installers' droppings."""
    with os.scandir(folder) as found:
        for item in sorted(found, key=lambda item: item.name):
            if item.name == "__pycache__" or item.name in LEFT_OUT or item.name.endswith(".pyc"):
                continue
            if item.is_dir(follow_symlinks=False):
                yield from _walk(Path(item.path))
            else:
                yield Path(item.path)
