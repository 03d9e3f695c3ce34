"""Everything that a conda-lock.yml (v1) says, of all its platforms and as it stands: for looking at a lock, not for installing it.

`reading.py`, the reader of what is to be installed, refuses a lock that cannot be trusted; this keeps what is wrong with it, so that
`verify` can name it, and entries of platforms that we do not build for, so that `diff`, `export` and mirrors hold them too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.core.errors import NOT_YAML, IntegrityError
from provision.core.types import Manager


@dataclass(frozen=True, kw_only=True)
class LockEntry:
    """One entry of the file. An unknown platform is kept: other tools lock for more than we build."""

    manager: Manager
    platform: str
    name: str
    version: str
    url: str
    md5: str
    sha256: str
    build: str  # as written, or "" for what stands only in the file's name
    depends: tuple[tuple[str, str], ...]  # name, constraint
    category: str

    @property
    def filename(self) -> str:
        return self.url.partition("#")[0].partition("?")[0].rsplit("/", 1)[-1]

    @property
    def build_string(self) -> str:
        """The build of a conda package; locks of other tools may lack it, and the file's name holds it: name-version-build.conda."""
        stem = self.filename.removesuffix(".conda").removesuffix(".tar.bz2")
        return self.build or stem.removeprefix(f"{self.name}-{self.version}-")


@dataclass(frozen=True, kw_only=True)
class LockFile:
    """A lock file as it stands."""

    path: Path
    sha256: str  # of the file's bytes
    entries: tuple[LockEntry, ...]
    channels: tuple[str, ...]
    platforms: tuple[str, ...]
    content_hash: Mapping[str, str]
    sources: tuple[str, ...]
    custom: Mapping[str, str]

    def of(self, platform: str) -> tuple[LockEntry, ...]:
        return tuple(entry for entry in self.entries if entry.platform == platform)


def read_file(path: Path) -> LockFile:
    """Read a lock file. Raises IntegrityError for what is no lock of version 1."""
    import yaml

    raw = path.read_bytes()
    try:
        content = yaml.load(raw, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if content["version"] != 1:
            raise IntegrityError(
                f"{path} is version {content['version']} of the lock format; this reads version 1."
            )
        return _contents(path, raw, content)
    except (yaml.YAMLError, *NOT_YAML) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise IntegrityError(
            f"{path} is not a lock file ({reason}).",
            advice="Name a conda-lock.yml, or an environment.",
        ) from error


def _contents(path: Path, raw: bytes, content: Mapping[str, Any]) -> LockFile:
    meta = content["metadata"]
    return LockFile(
        path=path,
        sha256=hashlib.sha256(raw).hexdigest(),
        entries=tuple(_entry(entry) for entry in content["package"]),
        channels=tuple(
            channel if isinstance(channel, str) else str(channel["url"])
            for channel in meta.get("channels") or ()
        ),
        platforms=tuple(str(platform) for platform in meta.get("platforms") or ()),
        content_hash={
            str(platform): str(value)
            for platform, value in (meta.get("content_hash") or {}).items()
        },
        sources=tuple(str(source) for source in meta.get("sources") or ()),
        custom={str(key): str(value) for key, value in (meta.get("custom_metadata") or {}).items()},
    )


def _entry(entry: Mapping[str, Any]) -> LockEntry:
    hashes = entry["hash"]
    manager: Manager = "conda" if entry["manager"] == "conda" else "pip"
    return LockEntry(
        manager=manager,
        platform=str(entry["platform"]),
        name=str(entry["name"]),
        version=str(entry["version"]),
        url=str(entry["url"]),
        md5=str(hashes.get("md5") or ""),
        sha256=str(hashes.get("sha256") or ""),
        build=str(entry.get("build") or ""),
        depends=tuple(
            (str(name), str(bound or ""))
            for name, bound in (entry.get("dependencies") or {}).items()
        ),
        category=str(entry.get("category", "main")),
    )
