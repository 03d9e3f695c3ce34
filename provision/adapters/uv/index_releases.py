"""The releases of a package that the indexes list, without resolving anything: uv names only the
release that it chooses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from provision.adapters.http import HttpClient
from provision.adapters.uv.configuration import with_login
from provision.adapters.uv.indexes import index_settings, pip_settings, pypi_url
from provision.adapters.uv.resolver import UV_MACHINE, ResolveRequest

_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"


@dataclass(frozen=True, kw_only=True)
class IndexRelease:
    """A release that is not yanked and may be installed on the request's Python.

    uploaded: YYYY-MM-DD, empty if the index does not say. has_wheel: one for the request's Python and
    platform.
    """

    version: Version
    uploaded: str
    has_wheel: bool


def index_releases(name: str, request: ResolveRequest) -> tuple[IndexRelease, ...]:
    """The releases of a package that the indexes list for a request, newest first.

    request: its Python, platform, glibc, day and mirrors count. Raises Unreachable if an index
    cannot be read.
    """
    tags = frozenset(_tags(request))
    found: dict[Version, IndexRelease] = {}
    settings = index_settings(request.build_path, request.mirrors)
    urls = [str(with_login(index, os.environ)["url"]) for index in settings.indexes]
    if settings.default_index is None and not request.mirrors.is_closed:
        urls.append(pypi_url())
    with HttpClient(pip_settings()) as client:
        for url in urls:
            for release in _page_releases(
                client, f"{url.rstrip('/')}/{canonicalize_name(name)}/", request, tags
            ):
                known = found.get(release.version, release)
                has_wheel = known.has_wheel or release.has_wheel
                found[release.version] = replace(known, has_wheel=has_wheel)
    return tuple(found[version] for version in sorted(found, reverse=True))


def _page_releases(
    client: HttpClient, url: str, request: ResolveRequest, tags: frozenset[Tag]
) -> Iterator[IndexRelease]:
    """One for each file of a project's page that counts; none if the index has no such page."""
    from pypi_simple import ProjectPage

    if url.startswith("file:"):
        return
    content = client.content(url, {"Accept": _ACCEPT}, missing=b"")
    if content.lstrip().startswith(b"{"):
        page = ProjectPage.from_json_data(json.loads(content), url)
    else:
        page = ProjectPage.from_html(url.rstrip("/").rpartition("/")[2], content.decode(), url)
    for package in page.packages:
        uploaded = package.upload_time.strftime("%Y-%m-%d") if package.upload_time else ""
        if package.is_yanked or not _allows(package.requires_python, request.python):
            continue
        if request.as_of and not "" < uploaded <= request.as_of:
            continue
        try:
            version = Version(package.version or "")
            has_wheel = package.package_type == "wheel" and not tags.isdisjoint(
                parse_wheel_filename(package.filename)[3]
            )
        except (InvalidVersion, InvalidWheelFilename):
            continue
        if has_wheel or package.package_type == "sdist":
            yield IndexRelease(version=version, uploaded=uploaded, has_wheel=has_wheel)


def _allows(requires_python: str | None, python: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        # The newest patch of the minor version.
        return SpecifierSet(requires_python or "").contains(f"{python}.99")
    except InvalidSpecifier:
        return True


def _tags(request: ResolveRequest) -> Iterator[Tag]:
    """The tags of wheels that the environment takes."""
    version = tuple(int(part) for part in request.python.split("."))
    machine = UV_MACHINE[request.platform]
    newest = int(request.glibc.split(".")[1])
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 4, -1)]
    # The names of manylinux before PEP 600.
    old_names = (("manylinux2014", 17), ("manylinux2010", 12), ("manylinux1", 5))
    platforms += [f"{name}_{machine}" for name, minor in old_names if minor <= newest]
    platforms.append(f"linux_{machine}")
    yield from cpython_tags(version, platforms=platforms)
    yield from compatible_tags(version, f"cp{version[0]}{version[1]}", platforms)
