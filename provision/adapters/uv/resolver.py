"""Which wheels satisfy requirements: one file each, with its hash."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from packaging.utils import canonicalize_name

from provision.adapters.uv.settings import index_options, own_address
from provision.adapters.uv.uv_process import call, uv_executable
from provision.catalog import version_key
from provision.core.errors import ProvisionError, Unsolvable
from provision.core.mirrors import NO_MIRRORS, Mirrors
from provision.core.tempdirs import temporary_directory
from provision.core.types import PLATFORM, LockedPackage, Platform

# uv --python-platform takes these glibc versions only (uv pip compile --help); the newest not above the wanted one is used.
UV_GLIBC = (
    "2.17",
    "2.28",
    "2.31",
    "2.32",
    "2.33",
    "2.34",
    "2.35",
    "2.36",
    "2.37",
    "2.38",
    "2.39",
    "2.40",
)
T = TypeVar("T")
UV_MACHINE: Mapping[Platform, str] = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}


@dataclass(frozen=True, kw_only=True)
class ResolveRequest:
    """What is to be resolved, for one platform."""

    requirements: tuple[str, ...]
    python: str
    glibc: str
    platform: Platform = PLATFORM
    provided: Mapping[str, str] = field(
        default_factory=dict
    )  # name -> version of what conda has: binds, and is no part of the answer
    prefer: Mapping[str, str] = field(
        default_factory=dict
    )  # name -> version of what an earlier lock holds: stays where it can
    build_path: str | None = (
        None  # the folder of PyTorch's own wheel index that holds the wanted build
    )
    as_of: str | None = (
        None  # YYYY-MM-DD: files uploaded after that day (UTC), or at a time that nobody tells, are invisible
    )
    mirrors: Mirrors = NO_MIRRORS  # where indexes and files really are; the answer names files by their own addresses


def resolve(request: ResolveRequest) -> tuple[LockedPackage, ...]:
    """The wheels that satisfy a request, one file each, with hashes, sorted by name. Raises Unsolvable, or Unreachable when an
    index does not answer."""
    entries, edges = _in_turn(request, _files)
    if request.as_of:
        _check_dates(entries, request.as_of)
    found = (
        dataclasses.replace(_package(entry, edges, request.mirrors), platform=request.platform)
        for entry in entries
    )
    return tuple(sorted(found, key=lambda package: package.name))


def resolve_versions(request: ResolveRequest) -> dict[str, str]:
    """Name -> version of all that would be in the environment, conda's part of it included; no file is looked at."""
    answer = _in_turn(request, _versions)
    return {
        _name(line): line.partition("==")[2].split()[0] for line in _pinned(answer) if "==" in line
    }


def _in_turn(
    request: ResolveRequest, ask: Callable[[ResolveRequest, Sequence[str | Path], Path], T]
) -> T:
    """Ask the index_options, and only if they have no answer the folders of this machine too."""
    where = index_options(request.build_path, request.mirrors)
    options: list[str | Path] = [
        "--python-version",
        request.python,
        "--python-platform",
        _python_platform(request),
    ]
    options += ["--exclude-newer", f"{request.as_of}T23:59:59.999Z"] if request.as_of else []
    with temporary_directory("uv") as folder:
        try:
            return ask(request, [*options, *where.remote], folder)
        except Unsolvable:
            if not where.local:
                raise
            return ask(request, [*options, *where.every], folder)


def _versions(request: ResolveRequest, options: Sequence[str | Path], folder: Path) -> str:
    """Which resolve_versions, and who needs whom, as uv annotates it."""
    wanted, bounds, answer = (
        folder / name for name in ("requirements.in", "constraints.txt", "versions.txt")
    )
    wanted.write_text(_lines(request.requirements))
    bounds.write_text(
        _lines(
            f"{name}=={version}"
            for name, version in request.provided.items()
            if _is_pep440(name, version)
        )
    )
    answer.write_text(
        _lines(f"{name}=={version}" for name, version in request.prefer.items())
    )  # uv keeps to what stands there
    call(
        [
            *_compile(options),
            wanted,
            "--constraints",
            bounds,
            "--annotation-style",
            "split",
            "-o",
            answer,
        ],
        alone=request.mirrors.is_closed,
    )
    return answer.read_text()


def _files(
    request: ResolveRequest, options: Sequence[str | Path], folder: Path
) -> tuple[list[dict[str, Any]], dict[str, tuple[str, ...]]]:
    """pylock's entries, and who needs whom: uv tells these in two formats, so the versions are found first and then their files."""
    answer = _versions(request, options, folder)
    exact, files = folder / "exact.in", folder / "pylock.toml"
    ours = _needed(request, _edges(answer))
    exact.write_text(_lines(line for line in _pinned(answer) if _name(line) in ours))
    command = [*_compile(options), exact, "--no-deps", "--format", "pylock.toml", "-o", files]
    try:  # all that it needs was read a moment ago; some indexes make uv read it again (torch 1.13: 7 s)
        call(
            [*command, *([] if "--offline" in options else ["--offline"])],
            alone=request.mirrors.is_closed,
        )
    except ProvisionError:  # there may be no cache
        call(command, alone=request.mirrors.is_closed)
    return _toml(files.read_text()).get("packages", []), _edges(answer)


def _needed(request: ResolveRequest, edges: Mapping[str, Sequence[str]]) -> set[str]:
    """What must be installed as a wheel: what is asked for and what that needs, but neither what conda has nor what only that
    needs as a wheel (conda's pytorch brings its own CUDA, not the NVIDIA wheels)."""
    provided = {canonicalize_name(name) for name in request.provided}
    found: set[str] = set()
    ahead = [_name(text) for text in request.requirements]
    while ahead:
        name = ahead.pop()
        if name not in provided and name not in found:
            found.add(name)
            ahead += edges.get(name, ())
    return found


def _compile(options: Sequence[str | Path]) -> list[str | Path]:
    # Any interpreter will do to resolve for another version; without this, uv downloads one of that version (tried: 11 s and 40 s, and
    # a site that is not the configured index).
    return [
        uv_executable(),
        "pip",
        "compile",
        "--quiet",
        "--no-header",
        "--no-python-downloads",
        "--python",
        sys.executable,
        *options,
    ]


def _check_dates(entries: Iterable[Mapping[str, Any]], as_of: str) -> None:
    """uv 0.13 holds back what an index gives no date for, but not what lies in a folder of find-links (tried)."""
    undated = [
        f"{entry['name']} {entry['version']}"
        for entry in entries
        if "archive" not in entry and "upload-time" not in _archive(entry)
    ]
    if undated:
        raise Unsolvable(
            f"Nobody tells when {', '.join(undated)} was published, so it cannot be part of a lock as of {as_of}.",
            advice="Take it from an index that tells upload times, or leave out --as-of.",
        )


def _python_platform(request: ResolveRequest) -> str:
    fitting = [known for known in UV_GLIBC if version_key(known) <= version_key(request.glibc)]
    newest = max(fitting, key=version_key, default=UV_GLIBC[0])
    return f"{UV_MACHINE[request.platform]}-manylinux_{newest.replace('.', '_')}"


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def _is_pep440(name: str, version: str) -> bool:
    """conda's names and versions need not be PyPI's: `_libgcc_mutex`, `1.1.1w`."""
    from packaging.version import InvalidVersion, Version

    try:
        Version(version)
    except InvalidVersion:
        return False
    return re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name) is not None


def _pinned(annotated: str) -> list[str]:
    return [
        line
        for line in annotated.splitlines()
        if line and not line[0].isspace() and not line.startswith("#")
    ]


def _name(line: str) -> str:
    return canonicalize_name(re.split(r"[=<>!~ @\[;]", line, maxsplit=1)[0])


def _edges(annotated: str) -> dict[str, tuple[str, ...]]:
    """Package -> what it needs, from uv's `# via` comments (which say it the other way round)."""
    needs: dict[str, set[str]] = {}
    current = ""
    for line in annotated.splitlines():
        words = line.strip().removeprefix("#").strip()
        if line and not line[0].isspace() and not line.startswith("#"):
            current = _name(line)
        elif (parent := words.removeprefix("via").strip()) and not parent.startswith("-"):
            needs.setdefault(parent.split()[0], set()).add(current)
    return {name: tuple(sorted(names)) for name, names in needs.items()}


def _toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    content: dict[str, Any] = tomllib.loads(text)
    return content


def _archive(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The one file of an entry: a wheel if there is one that fits the platform."""
    found: Mapping[str, Any] = (
        (entry.get("wheels") or [None])[0] or entry.get("sdist") or entry.get("archive") or {}
    )
    return found


def _package(
    entry: Mapping[str, Any], edges: Mapping[str, tuple[str, ...]], mirrors: Mirrors = NO_MIRRORS
) -> LockedPackage:
    archive = _archive(entry)
    if "sha256" not in archive.get("hashes", {}):
        raise Unsolvable(
            f"{entry['name']} {entry.get('version', '')} has no file with a sha256 that fits this platform, so it cannot be locked.",
            advice="Pin another version of it, or take it from conda.",
        )
    sha256: str = archive["hashes"]["sha256"]
    url = own_address(
        archive.get("url") or Path(archive["path"]).absolute().as_uri(), sha256, mirrors
    )
    return LockedPackage(
        manager="pip",
        name=entry["name"],
        version=entry["version"],
        url=url,
        sha256=sha256,
        depends=edges.get(entry["name"], ()),
        direct="archive" in entry,
    )
