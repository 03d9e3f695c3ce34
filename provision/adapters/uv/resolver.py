"""Resolves wheel requirements: one file each, with its hash."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from packaging.utils import canonicalize_name

from provision.adapters.uv.configuration import IndexSettings
from provision.adapters.uv.indexes import canonical_file_url, index_settings
from provision.adapters.uv.package_sources import PackageSources, package_sources
from provision.adapters.uv.resolve_request import UV_GLIBC, ResolveRequest, python_platform
from provision.adapters.uv.source_packages import static_version
from provision.adapters.uv.uv_process import run_uv, uv_executable
from provision.catalog import source_builds, version_key
from provision.core.credentials import without_credentials
from provision.core.errors import ProvisionError, Unsolvable
from provision.core.package_names import is_pep440, package_name
from provision.core.requirement_urls import EDITABLE, GIT
from provision.core.tempdirs import temporary_directory
from provision.core.toml_text import parse_toml
from provision.core.types import LockedPackage

# The project that requires what is requested, for uv.
_PROJECT = "provision-request"
T = TypeVar("T")
# Package name -> the names that it requires.
Dependencies = Mapping[str, tuple[str, ...]]


class PylockFile(TypedDict, total=False):
    """A file of a package in pylock.toml (PEP 751), as uv writes it."""

    url: str
    path: str
    hashes: dict[str, str]


class PylockPackage(TypedDict, total=False):
    """A package in pylock.toml: its files, or the repository or folder that it is built from."""

    name: str
    version: str
    wheels: list[PylockFile]
    sdist: PylockFile
    archive: PylockFile
    vcs: dict[str, str]
    directory: dict[str, Any]


def resolve(request: ResolveRequest) -> tuple[LockedPackage, ...]:
    """The wheels that satisfy a request, one file each, with hashes, sorted by name.

    Raises Unsolvable, or Unreachable if an index does not answer.
    """
    entries, dependencies = _remote_then_local(request, _compile_files)
    if request.as_of:
        _require_upload_times(entries, request.as_of)
    listed = frozenset(package_sources(request).tables)
    packages = [_locked_package(entry, dependencies, request, listed) for entry in entries]
    return tuple(sorted(packages, key=lambda package: package.name))


def resolve_versions(request: ResolveRequest) -> dict[str, str]:
    """The version by name of every package of the environment, conda's included; no file is looked
    at."""
    versions = {}
    for line in _requirement_lines(_remote_then_local(request, _compile_versions)):
        _, separator, version = line.partition("==")
        if separator:
            versions[package_name(line)] = version.split()[0]
    return versions


def _remote_then_local(
    request: ResolveRequest, compile_with: Callable[[ResolveRequest, IndexSettings, Path], T]
) -> T:
    """Ask the indexes; only if they have no answer, the folders of this machine too.

    So a lock names files that others can download wherever that is possible.
    """
    sources = package_sources(request)
    limits = (*request.constraints, *sources.exclusions)
    request = replace(request, constraints=limits)
    indexes = index_settings(request.build_path, request.mirrors)
    # What packages require that say so only while they are built, which takes torch. Those with a page
    # of wheels say it there.
    stated = [
        {"name": facts.package, "requires-dist": ["torch", *facts.requires]}
        for facts in source_builds().values()
        if facts.requires is not None and facts.package not in sources.tables
    ]
    indexes = replace(indexes, further={**indexes.further, "dependency-metadata": stated})
    with temporary_directory("uv") as folder:
        try:
            return compile_with(request, indexes, folder)
        except Unsolvable:
            if indexes.local is None:
                raise
            return compile_with(request, indexes.with_local(indexes.local), folder)


def _compile_versions(request: ResolveRequest, indexes: IndexSettings, folder: Path) -> str:
    """The resolved versions, with uv's annotations of which package requires which."""
    annotated = None
    if request.new_requirements is not None:
        annotated = _compile_new_requirements(request, indexes, folder)
    return annotated or _pip_compile(request, indexes, folder)


def _compile_new_requirements(
    request: ResolveRequest, indexes: IndexSettings, folder: Path
) -> str | None:
    """The same, where indexes are asked only about what is new: else uv asks about all packages,
    which takes a second (57 packages of torch 2.3).

    None unless each package is where it was locked, or where the new requirements alone put it.
    """
    assert request.new_requirements is not None
    accepted = {**_pinned(request.prefer), **_pinned(request.provided)}
    try:
        of_new = ""
        if request.new_requirements:
            # uv takes no addresses and no extras as constraints.
            constraints = [text for text in request.requirements if not {"@", "["} & set(text)]
            new_request = replace(request, requirements=request.new_requirements)
            of_new = _pip_compile(new_request, indexes, folder, constraints=constraints)
        annotated = _pip_compile(request, indexes, folder, "--offline")
    except ProvisionError:  # nothing in the cache, or a conflict, which the usual way explains
        return None
    new_lines = set(_requirement_lines(of_new))
    for line in _requirement_lines(annotated):
        is_locked = line == accepted.get(package_name(line))
        if not (is_locked or line in new_lines or " @ " in line):
            return None
    return annotated


def _pinned(versions: Mapping[str, str]) -> dict[str, str]:
    """By name, the lines with which uv prints these versions."""
    pinned = {canonicalize_name(name): version for name, version in versions.items()}
    return {name: f"{name}=={version}" for name, version in pinned.items()}


def _pip_compile(
    request: ResolveRequest,
    indexes: IndexSettings,
    folder: Path,
    *options: str,
    constraints: Sequence[str] = (),
) -> str:
    """constraints: besides conda's packages."""
    sources = package_sources(request)
    requirements = _requirements_file(folder / "all", request.requirements, sources, request.python)
    constraints_file = folder / "constraints.txt"
    provided = _exact(request.provided)
    constraints_file.write_text(_lines([*provided, *request.constraints, *constraints]))
    # uv prefers the versions that its output file holds already.
    output = folder / "versions.txt"
    output.write_text(_lines(_exact(request.prefer)))
    command = [*_compile_command(request), requirements, "--constraints", constraints_file]
    command += ["--annotation-style", "split", "-o", output, *options]
    run_uv(command, indexes)
    return output.read_text()


def _compile_files(
    request: ResolveRequest, indexes: IndexSettings, folder: Path
) -> tuple[list[PylockPackage], Dependencies]:
    """The entries of a pylock file, and the dependencies.

    uv writes these in two formats, so the versions are resolved first and then their files.
    """
    annotated = _compile_versions(request, indexes, folder)
    dependencies = _parse_dependencies(annotated)
    needed = _needed_wheels(request, dependencies)
    lines = [line for line in _requirement_lines(annotated) if package_name(line) in needed]
    sources = package_sources(request).of(map(package_name, lines))
    exact = _requirements_file(folder / "exact", lines, sources, request.python)
    output = folder / "pylock.toml"
    command = [*_compile_command(request), exact, "--no-deps", "--format", "pylock.toml"]
    command += ["-o", output]
    try:
        # All that it needs was read a moment ago; some indexes make uv read it again (torch 1.13: 7
        # s).
        run_uv([*command, "--offline"], indexes)
    except ProvisionError:  # there may be no cache
        run_uv(command, indexes)
    return parse_toml(output.read_text()).get("packages", []), dependencies


def _requirements_file(
    folder: Path, requirements: Sequence[str], sources: PackageSources, python: str
) -> Path:
    """A file that uv compiles: where packages have an index of their own, a project that says so.

    uv knows that of a project's own requirements only, so the packages are among them; what nothing
    requires is left out later.
    """
    folder.mkdir(exist_ok=True)
    if not sources.tables:
        path = folder / "requirements.in"
        path.write_text(_lines(requirements))
        return path
    import tomli_w

    names = [name for name in sources.tables if name not in map(package_name, requirements)]
    project = {
        "name": _PROJECT,
        "version": "0",
        "requires-python": f">={python}",
        "dependencies": [*requirements, *names],
    }
    tables = {table["url"]: table for table in sources.tables.values()}
    # Several items may name packages for one address.
    indexes = {
        name: {"index": tables[table["url"]]["name"]} for name, table in sources.tables.items()
    }
    settings = {"index": list(tables.values()), "sources": indexes}
    path = folder / "pyproject.toml"
    path.write_text(tomli_w.dumps({"project": project, "tool": {"uv": settings}}))
    return path


def _needed_wheels(request: ResolveRequest, dependencies: Dependencies) -> set[str]:
    """The names to install as wheels: the requirements and their dependencies, but neither conda's
    packages nor what only those require as wheels (conda's pytorch brings its own CUDA, not the
    NVIDIA wheels)."""
    provided = {canonicalize_name(name) for name in request.provided}
    needed = set()
    pending = [package_name(text) for text in request.requirements]
    while pending:
        name = pending.pop()
        if name not in provided and name not in needed:
            needed.add(name)
            pending += dependencies.get(name, ())
    return needed


def _compile_command(request: ResolveRequest) -> list[str | Path]:
    # Any interpreter can resolve for another version; without this, uv downloads one of that
    # version (tried: 11 s and 40 s, and from a site that is not the configured index).
    command: list[str | Path] = [uv_executable(), "pip", "compile", "--quiet", "--no-header"]
    command += ["--no-python-downloads", "--python", sys.executable]
    command += ["--python-version", request.python]
    command += ["--python-platform", _python_platform(request)]
    if request.as_of:
        command += ["--exclude-newer", f"{request.as_of}T23:59:59.999Z"]
    return command


def _require_upload_times(entries: Iterable[PylockPackage], as_of: str) -> None:
    """uv 0.13 holds back what an index gives no date for, but not what lies in a folder of
    find-links (tried)."""
    undated = []
    for entry in entries:
        is_of_index = not {"archive", "vcs", "directory"} & entry.keys()
        if is_of_index and "upload-time" not in _file_entry(entry):
            undated.append(f"{entry['name']} {entry['version']}")
    if undated:
        raise Unsolvable(
            f"The index has no upload time for {', '.join(undated)}, so `as_of` {as_of} excludes "
            "it.",
            advice="Take it from an index that has upload times, or leave `as_of` out.",
        )


def _python_platform(request: ResolveRequest) -> str:
    glibc = UV_GLIBC[0]
    for version in UV_GLIBC:
        if version_key(version) <= version_key(request.glibc):
            glibc = version
    return python_platform(request.platform, glibc)


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def _exact(versions: Mapping[str, str]) -> list[str]:
    """Requirements of exactly these versions."""
    return [f"{name}=={version}" for name, version in versions.items() if _is_pep440(name, version)]


def _is_pep440(name: str, version: str) -> bool:
    """conda's names and versions need not be PyPI's: `_libgcc_mutex`, `1.1.1w`."""
    return is_pep440(version) and bool(
        re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name)
    )


def _is_requirement(line: str) -> bool:
    """Whether a line of uv's annotated output is a requirement, not an annotation."""
    return bool(line) and not line[0].isspace() and not line.startswith("#")


def _requirement_lines(annotated: str) -> list[str]:
    return [line for line in annotated.splitlines() if _is_requirement(line)]


def _parse_dependencies(annotated: str) -> Dependencies:
    """From uv's `# via` comments, which name the packages that require the one above."""
    dependencies: dict[str, set[str]] = {}
    name = ""
    for line in annotated.splitlines():
        if _is_requirement(line):
            name = package_name(line)
            continue
        comment = line.strip().removeprefix("#").strip()
        parent = comment.removeprefix("via").strip()
        if parent and not parent.startswith("-"):
            dependencies.setdefault(parent.split()[0], set()).add(name)
    return {parent: tuple(sorted(names)) for parent, names in dependencies.items()}


def _file_entry(entry: PylockPackage) -> PylockFile:
    """The one file of a pylock entry: a wheel if one fits the platform."""
    if entry.get("wheels"):
        return entry["wheels"][0]
    return entry.get("sdist") or entry.get("archive") or {}


def _locked_package(
    entry: PylockPackage,
    dependencies: Dependencies,
    request: ResolveRequest,
    listed: Collection[str] = (),
) -> LockedPackage:
    """listed: the packages that have an index or a page of their own; they are installed by URL."""
    sha256, version = "", entry.get("version", "")
    if "vcs" in entry:  # a git repository at a commit
        vcs = entry["vcs"]
        url = without_credentials(f"{GIT}{vcs['url']}@{vcs['commit-id']}")
        if vcs.get("subdirectory"):
            url += f"#subdirectory={vcs['subdirectory']}"
    elif "directory" in entry:  # an editable
        project = Path(entry["directory"]["path"])
        url = f"{project.as_uri()}{EDITABLE}"
        version = version or static_version(project)
    else:
        file = _file_entry(entry)
        sha256 = file.get("hashes", {}).get("sha256", "")
        if not sha256:
            raise Unsolvable(
                f"{entry['name']} {version} has no file with a sha256 that fits this platform, so it "
                "cannot be locked.",
                advice="Pin another version of it, or take it from conda.",
            )
        url = file.get("url") or Path(file["path"]).absolute().as_uri()
        url = without_credentials(canonical_file_url(url, request.mirrors))
    is_listed = canonicalize_name(entry["name"]) in listed
    return LockedPackage(
        manager="pip",
        name=entry["name"],
        version=version or "0",
        url=url,
        sha256=sha256,
        depends=dependencies.get(entry["name"], ()),
        direct=is_listed or not {"vcs", "directory", "archive"}.isdisjoint(entry),
        platform=request.platform,
    )
