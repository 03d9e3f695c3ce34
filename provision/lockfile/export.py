"""A lock in the formats of other tools: conda's explicit list, pip's requirements, pylock.toml (PEP
751), pixi.lock; and as the parts of an SBOM.

The same lock gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Literal
from urllib.parse import unquote

from packaging.utils import canonicalize_name

from provision.adapters import conda
from provision.core.credentials import without_credentials
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.platforms import PLATFORM
from provision.core.sbom import Licenses, SbomPackage
from provision.core.statements import marker_environment
from provision.core.types import LockedPackage, Manager
from provision.lockfile.conda_lock_v1 import LockFile

ExportFormat = Literal["explicit", "requirements", "pylock", "pixi"]

MAX_NAMED = 5  # omitted packages that a note names

# The manager whose packages are not installed from a format.
OMITTED_MANAGER: Mapping[ExportFormat, Manager] = {
    "requirements": "conda",
    "pylock": "conda",
    "explicit": "pip",
}
OMISSION_NOTES: Mapping[Manager, str] = {
    "conda": "left out, since pip and uv install no conda packages",
    "pip": "only `# pip` lines, which conda itself does not read (micromamba and conda-lock do)",
}
# What chooses a build of PyTorch. A pylock.toml has no conda packages: these are noted in it, so that
# `provision import` knows the build.
BUILD_PACKAGES = ("python", "pytorch", "pytorch-cuda", "cudatoolkit", "cuda-version")
_VERIFY = "`provision lock verify` lists what is wrong with the lock."


def export_platforms(lock: LockFile, kind: ExportFormat, platform: str | None) -> tuple[str, ...]:
    """The platforms to export: `platform`, else all for a pixi.lock, else the lock's only one or
    linux-64.

    Raises InvalidSpec, with the lock's platforms, if it is not locked.
    """
    locked = tuple(sorted({entry.platform for entry in lock.entries} | set(lock.platforms)))
    if platform is None and (kind == "pixi" or len(locked) == 1):
        return locked
    platform = platform or PLATFORM
    if platform not in locked:
        raise InvalidSpec(
            f"{lock.path} is not locked for {platform}.",
            advice=f"--platform takes: {', '.join(locked) or 'none'}.",
        )
    return (platform,)


def main_entries(lock: LockFile, platform: str) -> tuple[LockedPackage, ...]:
    """The packages of an environment: conda-lock's other categories (dev, extras) are installed
    only on request.
    """
    return tuple(entry for entry in lock.for_platform(platform) if entry.category == "main")


def omitted_entries(
    lock: LockFile, kind: ExportFormat, platform: str
) -> tuple[list[LockedPackage], list[str]]:
    """The packages of a platform that a format leaves out, and notes that say so."""
    entries = main_entries(lock, platform)
    notes = []
    manager = OMITTED_MANAGER.get(kind)
    omitted = [entry for entry in entries if entry.manager == manager]
    if manager and omitted:
        notes.append(f"{OMISSION_NOTES[manager]}: {_listed(omitted)}")
        if len(omitted) == len(entries):
            notes.append("nothing else is locked, so the file installs nothing")
    optional = [entry for entry in lock.for_platform(platform) if entry.category != "main"]
    if optional:
        categories = ", ".join(sorted({entry.category for entry in optional}))
        notes.append(f"left out, as of another category ({categories}): {_listed(optional)}")
    return [*omitted, *optional], notes


def _listed(entries: Sequence[LockedPackage]) -> str:
    text = ", ".join(f"{entry.name} {entry.version}" for entry in entries[:MAX_NAMED])
    if len(entries) > MAX_NAMED:
        text += f" and {len(entries) - MAX_NAMED} more"
    return text


def export_lock(
    lock: LockFile,
    name: str,
    kind: ExportFormat,
    platform: str,
    *further_platforms: str,
) -> str:
    """The lock's text in another format. further_platforms: for pixi only.

    Raises IntegrityError for a lock that the format's own tools refuse.
    """
    entries = main_entries(lock, platform)
    if kind == "explicit":
        return explicit(lock, entries, platform)
    if kind == "requirements":
        return requirements(lock, entries, name, platform)
    if kind == "pylock":
        return pylock(lock, entries, platform)
    return pixi_lock(lock, (platform, *further_platforms))


def explicit(lock: LockFile, entries: Sequence[LockedPackage], platform: str) -> str:
    """conda's @EXPLICIT list, each package after what it needs; wheels as `# pip` lines, which
    micromamba and conda-lock read.
    """
    content_hash = lock.content_hash.get(platform)
    lines = [f"# platform: {platform}", f"# input_hash: {content_hash}", "@EXPLICIT"]
    conda_entries = {entry.name: entry for entry in entries if entry.manager == "conda"}
    lines += [
        f"{entry.url}#{entry.md5}" if entry.md5 else entry.url
        for entry in _in_order_of_installation(conda_entries)
    ]
    for entry in entries:
        if entry.manager == "pip":
            checksum = f"#sha256={entry.sha256}" if entry.sha256 else ""
            lines.append(f"# pip {entry.name} @ {entry.url}{checksum}")
    return without_credentials("\n".join(lines) + "\n")


def _in_order_of_installation(entries: Mapping[str, LockedPackage]) -> list[LockedPackage]:
    """Every package after its dependencies; in a circle (python, pip) the first name goes last."""
    ordered: dict[str, LockedPackage] = {}
    visited = set()

    def visit(name: str) -> None:
        if name in entries and name not in visited:
            visited.add(name)
            for dependency in entries[name].needs:
                visit(dependency)
            ordered[name] = entries[name]

    for name in sorted(entries):
        visit(name)
    return list(ordered.values())


def requirements(lock: LockFile, entries: Sequence[LockedPackage], name: str, platform: str) -> str:
    """The wheels, for `pip install --require-hashes -r` and uv, which install no conda packages."""
    text = (
        f"# The wheels of {name} for {platform}, from its conda-lock.yml; made by provision lock "
        "export.\n"
    )
    for entry in _wheels(lock, entries):
        # No index has a file of this disk.
        source = f" @ {entry.url}" if entry.url.startswith("file:") else f"=={entry.version}"
        text += f"{entry.name}{source} \\\n    --hash=sha256:{entry.sha256}\n"
    return text


def pylock(lock: LockFile, entries: Sequence[LockedPackage], platform: str) -> str:
    """pylock.toml (PEP 751), validated by packaging's implementation of the standard."""
    import tomli_w
    from packaging.pylock import Pylock, PylockValidationError

    wheels = _wheels(lock, entries)
    names = {canonicalize_name(entry.name) for entry in wheels}
    document: dict[str, object] = {"lock-version": "1.0"}
    with suppress(KeyError):  # a platform whose markers' values nobody knows
        values = marker_environment("3", platform)
        keys = ("sys_platform", "platform_machine")
        document["environments"] = [" and ".join(f"{key} == '{values[key]}'" for key in keys)]
    for entry in entries:
        if entry.manager == "conda" and entry.name == "python":
            document["requires-python"] = f"=={'.'.join(entry.version.split('.')[:2])}.*"
    document["created-by"] = "provision"
    document["packages"] = [_pylock_package(entry, names) for entry in wheels]
    build = [
        f"{entry.name}={entry.version}={entry.build}"
        for entry in entries
        if entry.manager == "conda" and entry.name in BUILD_PACKAGES
    ]
    if build:
        document["tool"] = {"provision": {"conda": build}}
    try:
        Pylock.from_dict(document).validate()
        return tomli_w.dumps(document)
    except (PylockValidationError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise IntegrityError(
            f"{lock.path} cannot be written as pylock: {reason}.", advice=_VERIFY
        ) from error


def _pylock_package(entry: LockedPackage, names: Collection[str]) -> dict[str, object]:
    package: dict[str, object] = {"name": canonicalize_name(entry.name), "version": entry.version}
    dependencies = {canonicalize_name(name) for name in entry.needs}
    locked = sorted(dependencies.intersection(names))
    if locked:
        package["dependencies"] = [{"name": name} for name in locked]
    filename = unquote(entry.filename)
    url = entry.url.partition("#")[0]
    file = {"name": filename, "url": url, "hashes": {"sha256": entry.sha256}}
    if filename.endswith(".whl"):
        package["wheels"] = [file]
    else:
        package["sdist"] = file
    return package


def pixi_lock(lock: LockFile, platforms: Sequence[str]) -> str:
    """pixi.lock, version 6 of rattler's lock format.

    A lock holds no `constrains`, sizes or licenses of conda packages; pixi installs without them.
    """
    import yaml

    references: dict[str, list[dict[str, str]]] = {}
    packages: dict[str, dict[str, object]] = {}
    for platform in platforms:
        entries = main_entries(lock, platform)
        wheels = _wheels(lock, entries)
        conda_entries = [entry for entry in entries if entry.manager == "conda"]
        references[platform] = []
        for entry in [*sorted(conda_entries, key=lambda entry: entry.name), *wheels]:
            url = entry.url.partition("#")[0]
            manager = "conda" if entry.manager == "conda" else "pypi"
            references[platform].append({manager: url})
            packages[url] = {manager: url, **_pixi_package(lock, entry)}
    channels = [{"url": conda.channel_url(channel)} for channel in lock.channels]
    environment = {"channels": channels, "packages": references}
    document = {
        "version": 6,
        "environments": {"default": environment},
        "packages": list(packages.values()),
    }
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def _pixi_package(lock: LockFile, entry: LockedPackage) -> dict[str, object]:
    hashes = {"sha256": entry.sha256, "md5": entry.md5}
    package: dict[str, object] = {kind: value for kind, value in hashes.items() if value}
    if not package:
        raise IntegrityError(f"{entry.name} has no hash in {lock.path}.", advice=_VERIFY)
    if entry.manager == "conda":
        # Its readers take it from an address, not from a path.
        subdir = {"subdir": entry.url.split("/")[-2]} if entry.url.startswith("file:") else {}
        return {**subdir, **package, "depends": list(entry.depends)}
    name = canonicalize_name(entry.name)
    depends = [canonicalize_name(name) for name in entry.needs]
    return {"name": name, "version": entry.version, **package, "requires_dist": depends}


def _wheels(lock: LockFile, entries: Sequence[LockedPackage]) -> list[LockedPackage]:
    wheels = [entry for entry in entries if entry.manager == "pip"]
    for entry in wheels:
        if not entry.sha256:
            raise IntegrityError(f"{entry.name} has no sha256 in {lock.path}.", advice=_VERIFY)
    return sorted(wheels, key=lambda entry: entry.name)


def sbom_parts(entries: Sequence[LockedPackage], licenses: Licenses) -> tuple[SbomPackage, ...]:
    """The packages of a lock as the parts of an SBOM."""
    # conda may provide what a wheel depends on; virtual packages are in no SBOM.
    conda_urls: dict[str, str] = {}
    wheel_urls: dict[str, str] = {}
    for entry in entries:
        urls = conda_urls if entry.manager == "conda" else wheel_urls
        urls[canonicalize_name(entry.name)] = entry.url
    parts = []
    for entry in entries:
        available = {**conda_urls, **wheel_urls} if entry.manager == "pip" else conda_urls
        names = {canonicalize_name(name) for name in entry.needs}
        # Nobody else can download a file of this machine's disk.
        is_remote = not entry.url.startswith("file:")
        part = SbomPackage(
            key=entry.url,
            manager=entry.manager,
            name=entry.name,
            version=entry.version,
            purl=package_url(entry),
            md5=entry.md5 or "",
            sha256=entry.sha256,
            license=licenses.get((entry.manager, canonicalize_name(entry.name)), ""),
            url=entry.url.partition("#")[0].partition("?")[0] if is_remote else "",
            needs=tuple(sorted({available[name] for name in names if name in available})),
        )
        parts.append(part)
    return tuple(parts)


def package_url(entry: LockedPackage) -> str:
    """The package's address in the purl specification's types `conda` and `pypi`."""
    from packageurl import PackageURL

    if entry.manager == "pip":
        return PackageURL("pypi", None, entry.name, entry.version).to_string()
    channel, subdir = "", ""
    folders = entry.url.rsplit("/", 2)
    if len(folders) == 3:
        channel, subdir = folders[0].rsplit("/", 1)[-1], folders[1]
    kind = "conda" if entry.filename.endswith(".conda") else "tar.bz2"
    qualifiers = {"build": entry.build, "channel": channel, "subdir": subdir, "type": kind}
    qualifiers = {key: value for key, value in qualifiers.items() if value}
    return PackageURL("conda", None, entry.name, entry.version, qualifiers).to_string()
