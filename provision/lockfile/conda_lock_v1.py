"""conda-lock.yml, version 1: read and written without importing conda-lock, which takes 0.45 s.

`read_file` returns every entry as written, also for platforms that we do not support, so that
`verify` can name what is wrong and `diff` and `export` lose nothing. `read`, for installing, returns
one platform of that, and refuses the whole lock for one malformed hash.

Below its header, the text that we write is byte for byte what conda-lock's own models and writer
make of the same packages (a test compares them).
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from provision.core.credentials import public_document, without_credentials
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.package_names import (
    archive_stem,
    is_pep440,
    url_filename,
    wheel_variant,
)
from provision.core.paths import ENVIRONMENT, LOCK
from provision.core.platforms import PLATFORMS, Platform, host_platform
from provision.core.remembered import remembered
from provision.core.requirement_urls import EDITABLE, GIT, absolute_url, is_commit, relative_url
from provision.core.schema import schema_error
from provision.core.types import Lock, LockedPackage, Manager
from provision.core.yaml_text import YamlError, parse_yaml, read_source
from provision.lockfile.input_files import LockInputs

FILE = LOCK

PythonSource = Literal["channel", "host"]


class LockRow(TypedDict, total=False):
    """A package as the file has it (provision/schemas/conda-lock.schema.json)."""

    name: str
    version: str
    manager: Manager
    platform: str
    dependencies: dict[str, str | None]
    url: str
    hash: dict[str, str | None]
    build: str
    source: object
    category: str
    optional: bool


class LockMetadata(TypedDict, total=False):
    """The file's metadata."""

    content_hash: Mapping[str, str]
    channels: list[Any]  # a URL, or a mapping with one
    platforms: list[str]
    sources: list[str]
    custom_metadata: dict[str, str]


class LockDocument(TypedDict):
    version: int
    metadata: LockMetadata
    package: list[LockRow]


# Keys of the lock's metadata.custom_metadata, which conda-lock passes through untouched.
# conda-lockfiles 0.2.2, conda's own plug-in, refuses a lock whose custom metadata lacks this key.
CREATED_BY = "created_by"
PYTHON_FROM = "provision_python_from"
PORTABLE = "provision_portable"
INPUTS = "provision_inputs_sha256"
AS_OF = "provision_as_of"
BUILDS = "provision_builds"
SOURCES = "provision_package_sources"

HEADER = (
    "# Every package of this environment, by URL and hash. Made by provision in the format of "
    "conda-lock (version 1); do not edit it.\n"
    "# Make the environment from it:  provision env create NAME, or  "
    "conda-lock install --prefix FOLDER conda-lock.yml\n"
    "# Move one package:              provision update NAME PACKAGE\n"
    "# Make it anew:                  provision lock NAME --relock\n"
)

SHA256 = re.compile(r"[0-9a-f]{64}")
MD5 = re.compile(r"[0-9a-f]{32}")
_RELOCK = "Restore the file, or lock again: provision lock NAME --relock"
_ADD_PLATFORM = (
    "Add the platform to spec.yml (platforms:) and lock again: provision lock NAME --relock"
)


@frozen
class LockFile:
    """A lock file of any tool, as written but for credentials in its addresses: all platforms,
    well-formed or not.

    credentials: where they were, as platform and package.
    """

    path: Path
    sha256: str  # of the file's bytes
    entries: tuple[LockedPackage, ...]
    channels: tuple[str, ...]
    platforms: tuple[str, ...]
    content_hash: Mapping[str, str]
    sources: tuple[str, ...]
    custom_metadata: Mapping[str, str]
    credentials: tuple[tuple[str, str], ...] = ()

    def for_platform(self, platform: str) -> tuple[LockedPackage, ...]:
        return tuple(entry for entry in self.entries if entry.platform == platform)


def read(path: Path, platform: Platform | None = None) -> Lock:
    """A lock for one platform: `platform`, else this machine's if the lock has it, else the lock's
    first.

    Raises IntegrityError for a file that is not a valid lock, InvalidSpec for a platform that it
    does not have.
    """
    return _lock(read_file(path), platform)


def read_platforms(path: Path) -> tuple[Lock, ...]:
    """The lock for each of its platforms. Raises IntegrityError as `read` does."""
    file = read_file(path)
    return tuple(_lock(file, platform) for platform in _platforms(file))


def read_file(path: Path, content: bytes | None = None) -> LockFile:
    """All of a lock file. content: what it is to hold, instead of what it holds.

    Raises IntegrityError if it is not a lock file of version 1.
    """
    try:
        return _parsed_file(path, read_source(path) if content is None else content)
    except YamlError as error:
        raise IntegrityError(error.in_file(path), advice=_RELOCK) from error


# A command reads a lock several times, before and after it changes.
@lru_cache(maxsize=4)
def _parsed_file(path: Path, content: bytes) -> LockFile:
    document = remembered("lock", path, content, lambda: _load(path, content))
    return _file(path, content, document)


def _file(path: Path, content: bytes, document: LockDocument) -> LockFile:
    metadata = document["metadata"]
    entries = []
    credentials = []
    if public_document(metadata) != metadata:
        credentials.append(("", path.name))
    for raw_entry in document["package"]:
        entry = public_document(raw_entry)
        if entry != raw_entry:
            credentials.append((entry["platform"], entry["name"]))
        depends = entry.get("dependencies") or {}
        url = absolute_url(entry["url"], path.parent)
        entries.append(
            LockedPackage(
                manager=entry["manager"],
                platform=entry["platform"],
                name=entry["name"],
                version=entry["version"],
                url=url,
                md5=entry["hash"].get("md5"),
                sha256=entry["hash"].get("sha256") or "",
                build=_build_string(entry, url_filename(url)),
                depends=tuple(f"{name} {limit or ''}".strip() for name, limit in depends.items()),
                category=entry.get("category") or "main",
                direct=bool(entry.get("source")),
            )
        )
    return LockFile(
        path=path,
        sha256=hashlib.sha256(content).hexdigest(),
        entries=tuple(entries),
        channels=_channels(metadata),
        platforms=tuple(metadata.get("platforms") or ()),
        content_hash=metadata["content_hash"],
        sources=tuple(metadata.get("sources") or ()),
        custom_metadata=metadata.get("custom_metadata") or {},
        credentials=tuple(credentials),
    )


def _build_string(row: LockRow, filename: str) -> str:
    """The build of a conda package, from the file name where another tool left it out; the variant
    label of a wheel."""
    if row["manager"] == "pip":
        return wheel_variant(filename)
    return row.get("build") or archive_stem(filename).removeprefix(
        f"{row['name']}-{row['version']}-"
    )


def require_this_platform(name: str, platforms: Collection[Platform]) -> None:
    """Raise InvalidSpec unless this machine's platform is among those of an environment."""
    machine = host_platform()
    if machine not in platforms:
        raise InvalidSpec(
            f"{name} is for {', '.join(platforms)}, and this machine is {machine or 'another'}: "
            "you can lock it here, but not build it.",
            advice=_ADD_PLATFORM,
        )


def compose(
    path: Path,
    inputs: LockInputs,
    packages: Sequence[LockedPackage],
    *,
    python_from: PythonSource,
) -> tuple[str, Lock]:
    """The text of a lock file, and the Lock that `read` would return for it at `path`."""
    document = _document(inputs, packages, python_from)
    text = remembered("lock's text", path, json.dumps(document).encode(), lambda: _text(document))
    content = text.encode()
    remembered("lock", path, content, lambda: _load(path, content))  # the next command reads it
    return text, _lock(_file(path, content, document), None)


def _load(path: Path, content: bytes) -> LockDocument:
    """The document of a lock file as the schema has it."""
    document = parse_yaml(content)
    version = document.get("version") if isinstance(document, dict) else None
    if isinstance(version, int) and version != 1:
        raise IntegrityError(
            f"{path} is version {version} of the lock format; this provision reads version 1.",
            advice=_RELOCK,
        )
    if problem := schema_error(document, "conda-lock"):
        raise IntegrityError(f"{path} is not a valid lock file: {problem}.", advice=_RELOCK)
    return cast(LockDocument, document)


def _lock(file: LockFile, platform: Platform | None) -> Lock:
    custom = file.custom_metadata
    platforms = _platforms(file)
    if platform is None:
        machine = host_platform()
        platform = machine if machine in platforms else platforms[0]
    if platform not in platforms:
        raise InvalidSpec(
            f"{file.path} has no packages for {platform}.",
            advice=f"It is for {', '.join(platforms)}. {_ADD_PLATFORM}",
        )
    for index, package in enumerate(file.entries):
        if package.platform != platform:
            continue
        problems = list(hash_problems(package))
        if package.manager == "pip" and not is_pep440(package.version):
            problems.append(f"has `{package.version}`, which is not a version of PEP 440")
        if problems:
            raise IntegrityError(
                f"{file.path} is not a valid lock file: package[{index}] ({package.name}) "
                f"{problems[0]}.",
                advice=_RELOCK,
            )
    return Lock(
        path=file.path,
        sha256=file.sha256,
        inputs_sha256=custom.get(INPUTS, ""),
        content_hash=file.content_hash[platform],
        packages=file.for_platform(platform),
        python_from="host" if custom.get(PYTHON_FROM) == "host" else "channel",
        portable=custom.get(PORTABLE) != "false",
        platform=platform,
        platforms=platforms,
        channels=file.channels,
        as_of=custom.get(AS_OF),
        builds=tuple(custom.get(BUILDS, "").splitlines()),
    )


def _platforms(file: LockFile) -> tuple[Platform, ...]:
    platforms = tuple(platform for platform in PLATFORMS if platform in file.content_hash)
    if not platforms:
        raise IntegrityError(
            f"{file.path} is not a lock that provision can use: metadata.content_hash has neither "
            f"{' nor '.join(PLATFORMS)}.",
            advice=_RELOCK,
        )
    return platforms


def _channels(metadata: LockMetadata) -> tuple[str, ...]:
    channels = []
    for channel in metadata.get("channels") or ():
        url = channel if isinstance(channel, str) else channel["url"]
        channels.append(without_credentials(url))
    return tuple(channels)


def hash_problems(package: LockedPackage) -> Iterator[str]:
    """What is wrong with the hashes of a package. A repository and an editable need none."""
    is_source = package.manager == "pip" and (is_commit(package.url) or package.is_editable)
    if not package.sha256 and not is_source:
        yield "has no sha256"
    if package.sha256 and not SHA256.fullmatch(package.sha256):
        yield f"has `{package.sha256[:70]}`, which is not a sha256"
    if package.md5 and not MD5.fullmatch(package.md5):
        yield f"has `{package.md5[:40]}`, which is not an md5"


def _document(
    inputs: LockInputs,
    packages: Sequence[LockedPackage],
    python_from: PythonSource,
) -> LockDocument:
    urls = [relative_url(package.url, inputs.folder) for package in packages]
    # Wheels in the environment's own folder go where the lock goes.
    local_schemes = ("file:/", f"{GIT}file:")
    from_disk = any(url.startswith(local_schemes) or url.endswith(EDITABLE) for url in urls)
    portable = python_from == "channel" and not from_disk
    custom = {
        CREATED_BY: "provision",  # no version: another release gives the same bytes
        PYTHON_FROM: python_from,
        PORTABLE: str(portable).lower(),
        INPUTS: inputs.sha256,
    }
    if inputs.as_of:
        custom[AS_OF] = inputs.as_of
    if inputs.builds:
        custom[BUILDS] = "\n".join(inputs.builds)
    if inputs.sources:
        custom[SOURCES] = "\n".join(inputs.sources)
    metadata: LockMetadata = {
        # A hash of our own: conda-lock installs the lock, and would not take it for its own.
        "content_hash": dict.fromkeys(map(str, inputs.machines), inputs.sha256),
        "channels": [{"url": channel, "used_env_vars": []} for channel in inputs.channels],
        "platforms": list(inputs.machines),
        "sources": [ENVIRONMENT],
        "custom_metadata": custom,
    }
    real = [package for package in packages if not package.name.startswith("__")]
    real.sort(key=lambda package: (package.manager, package.name, package.platform))
    return {
        "version": 1,
        "metadata": metadata,
        "package": [_package_row(package, inputs.folder) for package in real],
    }


def _text(document: LockDocument) -> str:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # the same text, 5 times as fast
    return HEADER + str(yaml.dump(document, Dumper=dumper, sort_keys=False))


def _package_row(package: LockedPackage, folder: Path) -> LockRow:
    url = relative_url(package.url, folder)
    hashes = {"md5": package.md5, "sha256": package.sha256}
    row: LockRow = {
        "name": package.name,
        "version": package.version,
        "manager": package.manager,
        "platform": package.platform,
        "dependencies": dict(sorted(_dependencies(package).items())),
        "url": url,
        "hash": {name: value for name, value in hashes.items() if value},
    }
    if package.direct:
        row["source"] = {"type": "url", "url": url}
    if package.build:
        row["build"] = package.build
    row["category"], row["optional"] = "main", False
    return row


def _dependencies(package: LockedPackage) -> dict[str, str]:
    """Name -> constraint.

    For wheels uv owns the constraints, so the lock only says which package needs which.
    """
    constraints: dict[str, str] = {}
    for text in package.depends:
        name, _, constraint = text.partition(" ")
        if not name:
            continue
        if package.manager == "conda":
            constraints[name] = _join_constraints(constraints.get(name, ""), constraint)
        else:
            constraints[name] = "*"
    return constraints


def _join_constraints(first: str, second: str) -> str:
    """Two constraints on one package as one: `3.11.* *_cp311` and `>=3` are `3.11.*,>=3 *_cp311`.

    conda reads no parentheses here, so alternatives are multiplied out. Of two build strings the
    narrower one stays; we saw no channel that requires two of which neither is narrower.
    """
    if not first or not second or first == second:
        return first or second
    first_versions, _, first_build = first.partition(" ")
    second_versions, _, second_build = second.partition(" ")
    alternatives = []
    for left in first_versions.split("|"):
        for right in second_versions.split("|"):
            parts = dict.fromkeys(f"{left},{right}".split(","))
            parts.pop("", None)
            limits = [part for part in parts if part != "*"]  # next to a limit, `*` adds nothing
            alternatives.append(",".join(limits or parts))
    build = first_build
    if not first_build or fnmatch.fnmatchcase(second_build, first_build):
        build = second_build
    return f"{'|'.join(alternatives)} {build}".strip()
