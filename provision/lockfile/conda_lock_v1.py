"""Reading a conda-lock.yml (v1), ours or another tool's, without conda-lock: a build with nothing to do must stay quick.

This is the strict reader, of what is to be installed: seen from one platform, and refused whole for one wrong hash or an unknown manager.
`contents.py` is the other, of what is to be looked at: all platforms as they stand, what is wrong included. One reader for both would
either refuse what `lock verify` is there to name, or let through what nobody should install.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from provision.adapters import conda
from provision.core.errors import NOT_YAML, IntegrityError, InvalidSpec
from provision.core.types import PLATFORMS, Lock, LockedPackage, Manager, Platform
from provision.lockfile.conda_lock_v1_writer import (
    AS_OF,
    INPUTS,
    PORTABLE,
    PYTHON_FROM,
    SOLVER,
    PythonSource,
    content,
    emitted,
)
from provision.lockfile.input_files import LockInputs

T = TypeVar("T")
_RELOCK = "Restore the file, or make it anew: provision lock NAME --relock"


def read(path: Path, platform: Platform | None = None) -> Lock:
    """A conda-lock.yml (v1), seen from a platform: the one asked for, else this machine's where the lock has it, else its first.

    Raises IntegrityError for a file that cannot be trusted as a lock, InvalidSpec for a platform that it does not hold.
    """
    return _seen(path, lambda raw, content: _lock(path, raw, content, platform))


def read_platforms(path: Path) -> tuple[Lock, ...]:
    """The lock as seen from each of its platforms."""

    def every(raw: bytes, content: Any) -> tuple[Lock, ...]:
        return tuple(
            _lock(path, raw, content, platform)
            for platform in _lock(path, raw, content, None).platforms
        )

    return _seen(path, every)


def compose(
    path: Path,
    wanted: LockInputs,
    packages: Sequence[LockedPackage],
    *,
    python_from: PythonSource,
    solver: str | None = None,
) -> tuple[str, Lock]:
    """The text of a lock that is to be written at `path`, and what reading it would give, without parsing it."""
    said = content(wanted, packages, python_from=python_from, solver=solver)
    text = emitted(said)
    return text, _lock(path, text.encode(), said, None)


def _seen(path: Path, see: Callable[[bytes, Any], T]) -> T:
    import yaml

    raw = path.read_bytes()
    try:
        said = yaml.load(raw, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, *NOT_YAML) as error:
        raise IntegrityError(
            f"{path} is not a lock file: {' '.join(str(error).split())}.", advice=_RELOCK
        ) from error
    try:
        return see(raw, said)
    except _Wrong as error:
        raise IntegrityError(f"{path} is not a lock file: {error}.", advice=_RELOCK) from error


class _Wrong(Exception):
    """What is not as a lock has it, in words."""


def _take(content: Any, key: str, kind: type[T], where: str) -> T:
    found = content.get(key) if isinstance(content, dict) else None
    if not isinstance(found, kind):
        raise _Wrong(
            f"{where} has no {key}"
            if found is None
            else f"{where} has a {key} that is no {kind.__name__}"
        )
    return found


def _texts(content: Mapping[Any, Any], where: str) -> dict[str, str]:
    if not all(isinstance(key, str) and isinstance(value, str) for key, value in content.items()):
        raise _Wrong(f"{where} holds what is not text")
    return dict(content)


def _lock(path: Path, raw: bytes, content: Any, asked: Platform | None) -> Lock:
    version = _take(content, "version", int, "it")
    if version != 1:
        raise _Wrong(f"it is version {version} of the format, and this reads version 1")
    meta = _take(content, "metadata", dict, "it")
    custom = (
        _texts(meta.get("custom_metadata") or {}, "custom_metadata")
        if isinstance(meta.get("custom_metadata") or {}, dict)
        else {}
    )
    hashes = _texts(_take(meta, "content_hash", dict, "metadata"), "content_hash")
    platforms = tuple(platform for platform in PLATFORMS if platform in hashes)
    platform = _seen_from(path, platforms, asked)
    entries = _take(content, "package", list, "it")
    return Lock(
        path=path,
        sha256=hashlib.sha256(raw).hexdigest(),
        inputs_sha256=custom.get(INPUTS, ""),
        content_hash=hashes[platform],
        packages=tuple(
            _package(entry, platform)
            for entry in entries
            if _take(entry, "platform", str, "a package") == platform
        ),
        python_from="host" if custom.get(PYTHON_FROM) == "host" else "channel",
        portable=custom.get(PORTABLE) != "false",
        platform=platform,
        platforms=platforms,
        channels=tuple(
            _take(channel, "url", str, "a channel") for channel in meta.get("channels") or ()
        ),
        as_of=custom.get(AS_OF),
        solver=custom.get(SOLVER),
    )


def _seen_from(path: Path, platforms: tuple[Platform, ...], asked: Platform | None) -> Platform:
    if not platforms:
        raise _Wrong(f"it locks none of {', '.join(PLATFORMS)}")
    if asked and asked not in platforms:
        raise InvalidSpec(
            f"{path} locks nothing for {asked}.",
            advice=f"It is for {', '.join(platforms)}. {ADD_PLATFORM}",
        )
    here = conda.host_platform()
    return asked or (here if here in platforms else platforms[0])


ADD_PLATFORM = (
    "Name the platform in spec.yml (platforms:) and lock it anew: provision lock NAME --relock"
)


def require_this_platform(name: str, platforms: Collection[Platform]) -> None:
    """Raise InvalidSpec unless an environment is for the machine we are on, too."""
    here = conda.host_platform()
    if here not in platforms:
        raise InvalidSpec(
            f"{name} is for {', '.join(platforms)}, and this machine is {here or 'another'}: it can be locked here, but not made.",
            advice=ADD_PLATFORM,
        )


def _package(entry: Mapping[str, Any], platform: Platform) -> LockedPackage:
    name = _take(entry, "name", str, "a package")
    hashes = _take(entry, "hash", dict, name)
    sha256, md5 = hashes.get("sha256"), hashes.get("md5")
    if not isinstance(sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise _Wrong(f"{name} has no well-formed sha256")
    if md5 is not None and not (isinstance(md5, str) and re.fullmatch(r"[0-9a-f]{32}", md5)):
        raise _Wrong(f"{name} has no well-formed md5")
    version, url = _take(entry, "version", str, name), _take(entry, "url", str, name)
    manager: Manager = "conda" if _take(entry, "manager", str, name) == "conda" else "pip"
    if entry["manager"] not in get_args(Manager):
        raise _Wrong(f"{name} has the manager {entry['manager']!r}")
    build = entry.get("build") or ""
    needs = _texts(
        _take(entry, "dependencies", dict, name) if entry.get("dependencies") else {},
        f"dependencies of {name}",
    )
    return LockedPackage(
        manager=manager,
        name=name,
        version=version,
        url=url,
        sha256=sha256,
        md5=md5,
        build=(str(build) or _build_of(url, name, version)) if manager == "conda" else "",
        direct=bool(entry.get("source")),
        depends=tuple(f"{needed} {bound}".strip() for needed, bound in needs.items()),
        platform=platform,
    )


def _build_of(url: str, name: str, version: str) -> str:
    """Locks of other tools may lack the build string; the file name holds it: name-version-build.conda."""
    stem = url.rsplit("/", 1)[-1].removesuffix(".conda").removesuffix(".tar.bz2")
    return stem.removeprefix(f"{name}-{version}-")
