"""A folder that stands for everything its locks name: conda packages as channels with repodata, wheels as a package index, and a
manifest that says which address each stands for. Any static web server can serve it.

    mirror.json                                  what `--mirror DIR` reads
    channels/HOST/PATH/SUBDIR/PACKAGE.conda      and repodata.json beside
    wheels/SHA256/WHEEL                          by content: two indexes may use one name for two files
    simple/NAME/index.html                       a package index (PEP 503)

This module owns the layout and the texts in it. What is fetched, and from where, is the workflow's.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from packaging.utils import canonicalize_name

from provision.adapters.conda import RepodataRow
from provision.core.atomic import atomic_write
from provision.core.errors import IntegrityError
from provision.core.mirrors import MANIFEST, SIMPLE, without_login
from provision.core.types import Manager

CHANNELS, WHEELS, REPODATA = "channels", "wheels", "repodata.json"


@dataclass(frozen=True, kw_only=True)
class MirrorFile:
    """One file of a lock, and where in the folder it lies."""

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
    """A file with its place. Raises IntegrityError for an entry that cannot be placed: no hash, no file's name."""
    plain = url.partition("#")[0]
    filename = unquote(plain.rsplit("/", 1)[-1])
    if (
        not re.fullmatch(r"[0-9a-f]{64}", sha256)
        or not filename
        or "/" in filename
        or filename.startswith(".")
    ):
        raise IntegrityError(
            f"{name} cannot be mirrored: the lock has no well-formed sha256 or no file's name for it ({without_login(url)}).",
            advice="`provision lock verify` lists what is wrong with the lock.",
        )
    if manager == "conda":
        channel, subdir, _ = plain.rsplit("/", 2)
        return MirrorFile(
            manager=manager,
            name=name,
            url=url,
            sha256=sha256,
            path=f"{CHANNELS}/{_slug(channel)}/{subdir}/{filename}",
        )
    return MirrorFile(
        manager=manager, name=name, url=url, sha256=sha256, path=f"{WHEELS}/{sha256}/{filename}"
    )


def _slug(channel: str) -> str:
    """A channel's folder: as its address reads; one of a disk by its last name, since its path is nobody else's matter."""
    parts = urlsplit(without_login(channel))
    if parts.scheme == "file":
        return f"local/{_plain(parts.path.rsplit('/', 1)[-1])}-{hashlib.sha256(channel.encode()).hexdigest()[:8]}"
    words = [parts.netloc, *parts.path.split("/")]
    return "/".join(_plain(word) for word in words if word.strip("."))


def _plain(word: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]", "_", unquote(word))


def unique_files(files: Iterable[MirrorFile]) -> list[MirrorFile]:
    """Each file once, sorted by place. Raises IntegrityError where two locks name two contents by one address."""
    found: dict[str, MirrorFile] = {}
    for file in files:
        known = found.setdefault(file.path, file)
        if known.sha256 != file.sha256:
            raise IntegrityError(
                f"The locks do not agree on what {without_login(file.url)} is: its sha256 is {known.sha256[:16]}… in one, "
                f"{file.sha256[:16]}… in another.",
                advice="Its channel replaced the file: relock the older one, or mirror them into two folders.",
            )
    return [found[path] for path in sorted(found)]


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest there is, or an empty one. Raises IntegrityError for a damaged one."""
    path = folder / MANIFEST
    if not path.exists():
        return {"schema": 1, "channels": {}, "wheels": {}}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        whole = (
            content["schema"] == 1
            and isinstance(content["channels"], dict)
            and isinstance(content["wheels"], dict)
        )
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(
            f"{path} is damaged: {type(error).__name__}.",
            advice="Remove it; the files stay and are taken up.",
        ) from error
    if not whole:
        raise IntegrityError(f"{path} is not the manifest of a mirror that this version makes.")
    return dict(content)


def write(
    folder: Path, files: Sequence[MirrorFile], records: Mapping[str, RepodataRow], *, prune: bool
) -> list[Path]:
    """Write repodata, index and manifest for the files, which are all there, and for those of earlier runs unless `prune`. Returns what
    is no longer named by them. records: of the conda packages, by address."""
    known = read_manifest(folder)
    channels = {
        **({} if prune else known["channels"]),
        **{file.channel: _channel_path(file) for file in files if file.manager == "conda"},
    }
    wheels = {
        **({} if prune else known["wheels"]),
        **{file.sha256: _row(file) for file in files if file.manager == "pip"},
    }
    for subfolder, named in _by_subfolder(files).items():
        _write_repodata(
            folder / subfolder,
            {Path(file.path).name: records[file.url] for file in named},
            prune=prune,
        )
    _write_index(folder, wheels)
    manifest = {"schema": 1, "channels": channels, "wheels": wheels}
    atomic_write(folder / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    return unreferenced(folder, {file.path for file in files}) if prune else []


def _channel_path(file: MirrorFile) -> str:
    return file.path.rsplit("/", 2)[0] + "/"


def _row(file: MirrorFile) -> dict[str, str]:
    return {"name": canonicalize_name(file.name), "path": file.path, "url": file.url}


def _by_subfolder(files: Iterable[MirrorFile]) -> dict[str, list[MirrorFile]]:
    found: dict[str, list[MirrorFile]] = {}
    for file in files:
        if file.manager == "conda":
            found.setdefault(file.path.rsplit("/", 1)[0], []).append(file)
    for channel in {subfolder.rsplit("/", 1)[0] for subfolder in found}:
        found.setdefault(
            f"{channel}/noarch", []
        )  # conda's tools take a channel without it for none
    return found


def _write_repodata(subfolder: Path, records: Mapping[str, RepodataRow], *, prune: bool) -> None:
    """The records of the packages in a folder: those given, and those that it had of files that are still there."""
    content = {**({} if prune else _earlier(subfolder)), **records}
    kinds: dict[str, dict[str, Any]] = {"packages": {}, "packages.conda": {}}
    for filename, record in sorted(content.items()):
        kinds["packages.conda" if filename.endswith(".conda") else "packages"][filename] = dict(
            record
        )
    subfolder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {"info": {"subdir": subfolder.name}, **kinds, "repodata_version": 1},
        indent=1,
        sort_keys=True,
    )
    atomic_write(subfolder / REPODATA, text + "\n")


def _earlier(subfolder: Path) -> dict[str, Any]:
    try:
        content = json.loads((subfolder / REPODATA).read_text(encoding="utf-8"))
        known = {**content["packages"], **content["packages.conda"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {
        filename: record for filename, record in known.items() if (subfolder / filename).is_file()
    }


def _write_index(folder: Path, wheels: Mapping[str, Mapping[str, str]]) -> None:
    by_name: dict[str, list[str]] = {}
    for sha256, row in sorted(wheels.items(), key=lambda pair: pair[1]["path"]):
        target = html.escape(f"../../{quote(row['path'])}#sha256={sha256}")
        by_name.setdefault(row["name"], []).append(
            f'<a href="{target}">{html.escape(Path(row["path"]).name)}</a><br>'
        )
    for name, links in by_name.items():
        atomic_write(folder / SIMPLE / name / "index.html", _page(links))
    atomic_write(
        folder / SIMPLE / "index.html",
        _page([f'<a href="{name}/">{name}</a><br>' for name in sorted(by_name)]),
    )


def _page(lines: Sequence[str]) -> str:
    return "\n".join(["<!DOCTYPE html>", "<html><body>", *lines, "</body></html>", ""])


def unreferenced(folder: Path, named: set[str]) -> list[Path]:
    """Packages, wheels and unfinished downloads beside those that are named."""
    files = (
        path
        for top in (CHANNELS, WHEELS)
        for path in (folder / top).rglob("*")
        if path.is_file() and path.name != REPODATA
    )
    return sorted(path for path in files if path.relative_to(folder).as_posix() not in named)
