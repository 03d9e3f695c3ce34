"""The packages of a lock as the parts of a bill of materials."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from packaging.utils import canonicalize_name

from provision.core.mirrors import without_credentials
from provision.core.sbom import Sbom, SbomPackage
from provision.lockfile.conda_lock_v1_contents import LockEntry


def bill(
    name: str,
    platform: str,
    lock_sha256: str,
    entries: Sequence[LockEntry],
    licenses: Mapping[str, str],
    epoch: int | None,
) -> Sbom:
    """Of the environment that a lock describes. licenses: by address, as the packages themselves say."""
    return Sbom(
        title=f"{name}-{platform}",
        name=name,
        version=lock_sha256[:16],
        kind="platform",
        reference=f"environment:{name}:{platform}",
        comment=f"An environment for {platform}; the sha256 of its conda-lock.yml is {lock_sha256}.",
        parts=sbom_parts(entries, licenses),
        identity=json.dumps([name, platform, lock_sha256, sorted(licenses.items()), epoch]),
        properties=(("provision:platform", platform), ("provision:lock", lock_sha256)),
        epoch=epoch,
    )


def sbom_parts(
    entries: Sequence[LockEntry], licenses: Mapping[str, str]
) -> tuple[SbomPackage, ...]:
    needs = edges(entries)
    return tuple(_part(entry, licenses.get(entry.url, ""), needs[entry.url]) for entry in entries)


def _part(entry: LockEntry, license_said: str, needs: Sequence[str]) -> SbomPackage:
    return SbomPackage(
        key=entry.url,
        manager=entry.manager,
        name=entry.name,
        version=entry.version,
        purl=purl(entry),
        md5=entry.md5,
        sha256=entry.sha256,
        license=license_said,
        url=_public(entry.url),
        filename=entry.filename,
        needs=tuple(needs),
    )


def purl(entry: LockEntry) -> str:
    """The package's address by the purl specification's types `conda` and `pypi`."""
    from packageurl import PackageURL

    if entry.manager == "pip":
        return PackageURL("pypi", None, entry.name, entry.version).to_string()
    place = without_credentials(entry.url).rsplit("/", 2)
    channel, subdir = (place[0].rsplit("/", 1)[-1], place[1]) if len(place) == 3 else ("", "")
    kind = "conda" if entry.filename.endswith(".conda") else "tar.bz2"
    qualifiers = {"build": entry.build_string, "channel": channel, "subdir": subdir, "type": kind}
    return PackageURL(
        "conda",
        None,
        entry.name,
        entry.version,
        {key: value for key, value in qualifiers.items() if value},
    ).to_string()


def edges(entries: Sequence[LockEntry]) -> dict[str, list[str]]:
    """Address -> addresses of what it needs. A wheel's need may be met by conda; what is the machine's is in no bill."""
    conda = {
        canonicalize_name(entry.name): entry.url for entry in entries if entry.manager == "conda"
    }
    wheels = {
        canonicalize_name(entry.name): entry.url for entry in entries if entry.manager == "pip"
    }
    found = {}
    for entry in entries:
        there = {**conda, **wheels} if entry.manager == "pip" else conda
        found[entry.url] = sorted(
            {
                there[canonicalize_name(name)]
                for name, _ in entry.depends
                if canonicalize_name(name) in there
            }
        )
    return found


def _public(url: str) -> str:
    """Where others can have it: not from this machine's disk. Without logins, tokens of channels and queries, which may be signatures."""
    return (
        ""
        if url.startswith("file:")
        else without_credentials(url.partition("#")[0].partition("?")[0])
    )
