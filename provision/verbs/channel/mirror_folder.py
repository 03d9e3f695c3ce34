"""A local mirror: a folder with everything that locks name, which any static web server can serve.

    mirror.json                               read by `--mirror DIR`: the address of each part
    channels/HOST/PATH/SUBDIR/PACKAGE.conda   conda channels, with repodata.json
    wheels/SHA256/WHEEL                       by hash: two indexes may give two files one name
    simple/NAME/index.html                    a package index (PEP 503)
    facts.json                                the facts in use: docs/facts.md

This module owns the layout and the texts in it. `mirror.py` decides what to download, and
from where.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict
from urllib.parse import quote, unquote, urlsplit

from packaging.utils import canonicalize_name

from provision.adapters.conda import RepodataRow
from provision.core.atomic import atomic_write
from provision.core.credentials import without_login
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError
from provision.core.json_text import parse_json
from provision.core.mirrors import MANIFEST, SIMPLE
from provision.core.schema import InvalidDocument, parse_document
from provision.core.types import Manager

CHANNELS = "channels"
WHEELS = "wheels"
REPODATA = "repodata.json"


class MirrorWheel(TypedDict):
    """A wheel in the manifest. path: in the folder. url: as locks name it."""

    name: str
    path: str
    url: str


class MirrorManifest(TypedDict):
    """mirror.json (provision/schemas/mirror.schema.json)."""

    schema: int
    channels: dict[str, str]
    wheels: dict[str, MirrorWheel]


@frozen
class MirrorFile:
    """One file of a lock, and its path in the folder."""

    manager: Manager
    name: str
    url: str  # as the lock names it
    sha256: str
    path: str

    @property
    def channel(self) -> str:
        """The canonical address of its channel."""
        return self.url.rsplit("/", 2)[0] + "/"


def mirror_file(manager: Manager, name: str, url: str, sha256: str) -> MirrorFile:
    """A file with its path.

    Raises IntegrityError for an entry without a well-formed hash or a file name.
    """
    plain_url = url.partition("#")[0]
    filename = unquote(plain_url.rsplit("/", 1)[-1])
    is_safe_name = filename != "" and "/" not in filename and not filename.startswith(".")
    if not is_safe_name or not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise IntegrityError(
            f"{name} cannot be mirrored: the lock has no well-formed sha256 or no file name for "
            f"it ({url}).",
            advice="`provision lock verify` lists what is wrong with the lock.",
        )
    path = f"{WHEELS}/{sha256}/{filename}"
    if manager == "conda":
        channel, subdir, _ = plain_url.rsplit("/", 2)
        path = f"{CHANNELS}/{_channel_folder(channel)}/{subdir}/{filename}"
    return MirrorFile(manager=manager, name=name, url=url, sha256=sha256, path=path)


def _channel_folder(channel: str) -> str:
    """The folder of a channel: its host and path; for a local channel only the last part of the
    path, which is private.
    """
    parts = urlsplit(without_login(channel))
    if parts.scheme == "file":
        digest = hashlib.sha256(channel.encode()).hexdigest()[:8]
        return f"local/{_safe_name(parts.path.rsplit('/', 1)[-1])}-{digest}"
    names = [parts.netloc, *parts.path.split("/")]
    return "/".join(_safe_name(name) for name in names if name.strip("."))


def _safe_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]", "_", unquote(name))


def unique_files(files: Iterable[MirrorFile]) -> list[MirrorFile]:
    """The files without repeats, sorted by path.

    Raises IntegrityError if two locks have different contents for one address.
    """
    by_path: dict[str, MirrorFile] = {}
    for file in files:
        first = by_path.setdefault(file.path, file)
        if first.sha256 != file.sha256:
            raise IntegrityError(
                f"The locks disagree about {file.url}: its sha256 is "
                f"{first.sha256[:16]}… in one and {file.sha256[:16]}… in another.",
                advice=(
                    "Its channel replaced the file: relock the older one, or mirror them into "
                    "two folders."
                ),
            )
    return [by_path[path] for path in sorted(by_path)]


def read_manifest(folder: Path) -> MirrorManifest:
    """The folder's manifest, or an empty one if there is none.

    Raises IntegrityError for a damaged one.
    """
    path = folder / MANIFEST
    if not path.exists():
        return {"schema": 1, "channels": {}, "wheels": {}}
    try:
        manifest: MirrorManifest = parse_document(path.read_bytes(), "mirror")
    except InvalidDocument as error:
        raise IntegrityError(
            f"{path} is not a valid manifest of a mirror: {error}.",
            advice="Remove it: the mirrored files stay and will be used again.",
        ) from error
    return manifest


def write(folder: Path, files: Sequence[MirrorFile], rows: Mapping[str, RepodataRow]) -> None:
    """Write repodata, index and manifest for the files, which are all in the folder. Files of
    earlier runs stay in them.

    rows: the repodata of the conda packages, by URL.
    """
    manifest = read_manifest(folder)
    rows_by_subdir: dict[str, dict[str, RepodataRow]] = {}
    for file in files:
        if file.manager == "conda":
            subdir, _, filename = file.path.rpartition("/")
            channel_path = subdir.rpartition("/")[0]
            manifest["channels"][file.channel] = f"{channel_path}/"
            rows_by_subdir.setdefault(subdir, {})[filename] = rows[file.url]
            # conda's tools do not recognize a channel without this folder.
            rows_by_subdir.setdefault(f"{channel_path}/noarch", {})
        else:
            name = canonicalize_name(file.name)
            manifest["wheels"][file.sha256] = {"name": name, "path": file.path, "url": file.url}
    for subdir, subdir_rows in rows_by_subdir.items():
        _write_repodata(folder / subdir, subdir_rows)
    _write_index(folder, manifest["wheels"])
    atomic_write(folder / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True) + "\n")


def _write_repodata(subdir: Path, rows: Mapping[str, RepodataRow]) -> None:
    """Write the rows, and the earlier rows of files that still exist."""
    kinds: dict[str, dict[str, RepodataRow]] = {"packages": {}, "packages.conda": {}}
    for filename, row in sorted({**_earlier_rows(subdir), **rows}.items()):
        kind = "packages.conda" if filename.endswith(".conda") else "packages"
        kinds[kind][filename] = dict(row)
    repodata = {"info": {"subdir": subdir.name}, **kinds, "repodata_version": 1}
    atomic_write(subdir / REPODATA, json.dumps(repodata, indent=1, sort_keys=True) + "\n")


def _earlier_rows(subdir: Path) -> dict[str, RepodataRow]:
    """The rows of an earlier run; empty if its repodata is missing or damaged."""
    try:
        repodata = parse_json((subdir / REPODATA).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    rows: dict[str, RepodataRow] = {}
    for kind in ("packages", "packages.conda"):
        packages = repodata.get(kind) if isinstance(repodata, dict) else None
        if isinstance(packages, dict):
            rows.update(packages)
    return {filename: row for filename, row in rows.items() if (subdir / filename).is_file()}


def _write_index(folder: Path, wheels: Mapping[str, MirrorWheel]) -> None:
    links_by_name: dict[str, list[str]] = {}
    for sha256, row in sorted(wheels.items(), key=lambda item: item[1]["path"]):
        target = html.escape(f"../../{quote(row['path'])}#sha256={sha256}")
        filename = html.escape(Path(row["path"]).name)
        links_by_name.setdefault(row["name"], []).append(f'<a href="{target}">{filename}</a><br>')
    for name, links in links_by_name.items():
        atomic_write(folder / SIMPLE / name / "index.html", _page(links))
    names = [f'<a href="{name}/">{name}</a><br>' for name in sorted(links_by_name)]
    atomic_write(folder / SIMPLE / "index.html", _page(names))


def _page(lines: Sequence[str]) -> str:
    return "\n".join(["<!DOCTYPE html>", "<html><body>", *lines, "</body></html>", ""])
