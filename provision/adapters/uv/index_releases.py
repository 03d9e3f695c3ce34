"""The releases of a package that the indexes list, without resolving anything: uv names only the
release that it chooses."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name
from packaging.version import Version

from provision.adapters.http import HttpClient
from provision.adapters.uv.configuration import IndexSettings, with_login
from provision.adapters.uv.index_page import IndexFile, parse_page
from provision.adapters.uv.indexes import index_settings, pip_settings, pypi_url
from provision.adapters.uv.resolve_request import UV_GLIBC, UV_MACHINE, ResolveRequest
from provision.core.credentials import without_credentials
from provision.core.dataclass import frozen
from provision.core.errors import Unreachable
from provision.core.mirrors import Mirrors, path_from_url
from provision.core.package_names import parse_distribution
from provision.core.types import LockedPackage

_MANYLINUX = re.compile(r"manylinux_2_(\d+)_")
# The names of manylinux before PEP 600, which sets the oldest glibc.
_OLD_NAMES = {"manylinux2014": "2.17", "manylinux2010": "2.12", "manylinux1": "2.5"}
OLDEST_GLIBC = "2.5"
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"


@frozen
class IndexRelease:
    """A release that is not yanked and may be installed on the request's Python.

    uploaded: YYYY-MM-DD, empty if the index does not say. glibc: the oldest one for which it has a
    wheel for the request's Python and platform, 2.5 at least; None if it has no such wheel.
    """

    version: Version
    uploaded: str
    glibc: Version | None


def index_releases(name: str, request: ResolveRequest) -> tuple[IndexRelease, ...]:
    """The releases of a package that the indexes and find-links list for a request, newest first;
    those on this machine's disk only if the others list none, as for `resolve`.

    request: its Python, platform, day and mirrors count. Raises Unreachable if an index
    cannot be read.
    """
    tags = request_tags(request)
    releases: dict[Version, IndexRelease] = {}
    settings = index_settings(request.build_path, request.mirrors)
    local = settings.local or IndexSettings()
    groups = (
        (index_urls(request.build_path, request.mirrors), settings.find_links),
        ([str(index["url"]) for index in local.indexes], local.find_links),
    )
    with HttpClient(pip_settings()) as client:
        for urls, links in groups:
            pages = [project_url(url, name) for url in urls]
            for page in () if releases else (*pages, *links):
                for release in _page_releases(page_files(client, page), name, request, tags):
                    other = releases.get(release.version, release)
                    glibcs = filter(None, (release.glibc, other.glibc))
                    releases[release.version] = replace(other, glibc=min(glibcs, default=None))
    return tuple(releases[version] for version in sorted(releases, reverse=True))


def newest_release(
    releases: Iterable[IndexRelease], limits: SpecifierSet, current: Version, glibc: str | None
) -> Version:
    """The newest release within the limits, or the current one. Pre-releases count beside a
    pre-release. glibc: it must have a wheel for that; None: it need not have one."""
    versions = [current]
    for release in releases:
        is_allowed = current.is_prerelease or not release.version.is_prerelease
        has_wheel = glibc is None or (release.glibc is not None and release.glibc <= Version(glibc))
        if is_allowed and has_wheel and limits.contains(release.version, prereleases=True):
            versions.append(release.version)
    return max(versions)


def wheel_glibc(package: LockedPackage, request: ResolveRequest) -> Version | None:
    """The oldest glibc for which a release has a wheel; None if it has none for any glibc.

    Raises Unreachable if an index cannot be read.
    """
    version = Version(package.version)
    releases = index_releases(package.name, request)
    return next((release.glibc for release in releases if release.version == version), None)


def index_urls(build_path: str | None, mirrors: Mirrors) -> list[str]:
    """The addresses of the configured indexes, with their logins."""
    settings = index_settings(build_path, mirrors)
    urls = [str(with_login(index, os.environ)["url"]) for index in settings.indexes]
    if settings.default_index is None:
        urls.append(pypi_url())
    return urls


def project_url(index: str, name: str) -> str:
    return f"{index.rstrip('/')}/{canonicalize_name(name)}/"


def page_files(client: HttpClient, url: str) -> list[IndexFile]:
    """The files that a page names, or that lie in a folder; none if there is no such page.

    Raises Unreachable if it cannot be read.
    """
    if "://" not in url or url.startswith("file:"):
        folder = path_from_url(url) if url.startswith("file:") else Path(url)
        paths = folder.absolute().iterdir() if folder.is_dir() else ()
        return [IndexFile(path.name, path.as_uri()) for path in paths]
    content = client.content(url, {"Accept": _ACCEPT}, missing=b"")
    try:
        return parse_page(content, url)
    except (ValueError, LookupError, TypeError) as error:
        raise Unreachable(f"{without_credentials(url)} is not a list of files.") from error


def _page_releases(
    files: Iterable[IndexFile],
    name: str,
    request: ResolveRequest,
    tags: frozenset[Tag],
) -> Iterator[IndexRelease]:
    """One for each file of the project that counts."""
    for entry in files:
        if entry.is_yanked or not _allows(entry.requires_python, request.python):
            continue
        if request.as_of and not "" < entry.uploaded <= request.as_of:
            continue
        file = parse_distribution(entry.filename)
        if file is None or file.name != canonicalize_name(name):
            continue
        fitting = tags & file.tags
        if fitting or not file.tags:
            yield IndexRelease(
                version=file.version, uploaded=entry.uploaded, glibc=oldest_glibc(fitting)
            )


def oldest_glibc(tags: Iterable[Tag]) -> Version | None:
    """The oldest glibc that wheels with these tags need; None without tags."""
    return min((_glibc(tag.platform) for tag in tags), default=None)


def _glibc(platform: str) -> Version:
    """The glibc of a wheel's platform tag."""
    match = _MANYLINUX.match(platform)
    if match:
        return Version(f"2.{match[1]}")
    return Version(_OLD_NAMES.get(platform.partition("_")[0], OLDEST_GLIBC))


def _allows(requires_python: str, python: str) -> bool:
    from packaging.specifiers import InvalidSpecifier

    try:
        # The newest patch of the minor version.
        return SpecifierSet(requires_python).contains(f"{python}.99")
    except InvalidSpecifier:
        return True


def request_tags(request: ResolveRequest) -> frozenset[Tag]:
    """The tags of wheels that the environment takes, whatever its glibc."""
    version = tuple(int(part) for part in request.python.split("."))
    machine = UV_MACHINE[request.platform]
    oldest, newest = (int(glibc.split(".")[1]) for glibc in (OLDEST_GLIBC, UV_GLIBC[-1]))
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(oldest, newest + 1)]
    platforms += [f"{name}_{machine}" for name in (*_OLD_NAMES, "linux")]
    interpreter = f"cp{version[0]}{version[1]}"
    return frozenset(
        (
            *cpython_tags(version, platforms=platforms),
            *compatible_tags(version, interpreter, platforms),
        )
    )
