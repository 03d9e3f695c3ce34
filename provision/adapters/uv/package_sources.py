"""Indexes and pages of wheels that serve only the packages that are named for them.

uv takes such a package from there and from nowhere else, and no other package from there: neither
side can replace the other's. Wheels that are built for one torch, CUDA and C++ ABI look alike to uv,
so those for others are excluded here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cache

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from provision.adapters.http import HttpClient
from provision.adapters.uv.configuration import IndexTable
from provision.adapters.uv.index_releases import oldest_glibc, page_files, request_tags
from provision.adapters.uv.indexes import pip_settings
from provision.adapters.uv.resolve_request import ResolveRequest
from provision.core.credentials import without_credentials
from provision.core.dataclass import frozen
from provision.core.errors import Unsolvable
from provision.core.package_names import DistributionFile, parse_distribution
from provision.core.requirement_urls import source_address, source_packages

MAX_REASONS = 3


class NoWheelFits(Unsolvable):
    """A page or an index has nothing of a package for this torch, CUDA and Python."""


@frozen
class PackageSources:
    """tables: by canonical name, the package's own index in the terms of uv. exclusions: constraints
    on what must not be taken from there."""

    tables: Mapping[str, IndexTable] = field(default_factory=dict)
    exclusions: tuple[str, ...] = ()

    def of(self, names: Iterable[str]) -> PackageSources:
        """The same for these packages alone."""
        return PackageSources(
            tables={name: self.tables[name] for name in names if name in self.tables}
        )


def package_sources(request: ResolveRequest) -> PackageSources:
    """Where the named packages of a request come from.

    Raises NoWheelFits if a source has none of a package
    that fits, and Unreachable if it cannot be read.
    """
    requested: dict[str, SpecifierSet] = {}
    by_url = set()
    for requirement in map(Requirement, request.requirements):
        canonical = canonicalize_name(requirement.name)
        requested[canonical] = requirement.specifier
        if requirement.url:
            by_url.add(canonical)
    tables: dict[str, IndexTable] = {}
    exclusions: list[str] = []
    for number, item in enumerate(request.sources):
        is_page = item.startswith("find_links: ")
        address = request.mirrors.actual_url(source_address(item))
        names = source_packages(item)
        if not names:
            listed = {file.name for file in _listed(address)}
            names = [name for name in requested if name in listed]
        for name in names:
            if name in by_url or name in tables:
                continue
            url = address if is_page else f"{address.rstrip('/')}/{name}/"
            exclusions += _exclusions(request, name, requested.get(name, SpecifierSet()), url)
            tables[name] = {
                "name": f"source-{number}",
                "url": address,
                "explicit": True,
                "format": "flat" if is_page else "simple",
            }
    return PackageSources(tables=tables, exclusions=tuple(exclusions))


@cache
def _listed(url: str) -> tuple[DistributionFile, ...]:
    """The packages that an address lists. Other files may lie there too."""
    with HttpClient(pip_settings()) as client:
        files = page_files(client, url)
    return tuple(filter(None, (parse_distribution(file.filename) for file in files)))


def _exclusions(
    request: ResolveRequest, name: str, specifier: SpecifierSet, url: str
) -> Iterator[str]:
    """Constraints on the versions of a package that are for another torch, CUDA or C++ ABI."""
    tags = request_tags(request)
    fitting: set[Version] = set()
    problems: dict[Version, str] = {}
    for file in _listed(url):
        version = file.version
        if file.name != name or not specifier.contains(version, prereleases=True):
            continue
        problem = request.torch.mismatch(version) if request.torch else ""
        if not problem and file.tags:
            glibc = oldest_glibc(tags & file.tags)
            if glibc is None or glibc > Version(request.glibc):
                needs = "" if glibc is None else f" with glibc {request.glibc}"
                problem = f"has no wheel for Python {request.python}{needs}"
        if problem:
            problems[version] = problem
        else:
            fitting.add(version)
    if not fitting:
        raise _none_fits(request, name, url, problems)
    # Of wheels for several minor versions of CUDA, those for the build's own.
    exact = {version.public for version in fitting if _is_exact(request, version)}
    for version in sorted({*problems, *fitting}):
        is_inexact = version.public in exact and not _is_exact(request, version)
        if version.local and (version not in fitting or is_inexact):
            yield f"{name}!={version}"


def _is_exact(request: ResolveRequest, version: Version) -> bool:
    return request.torch is not None and request.torch.is_for_exact_cuda(version)


def _none_fits(
    request: ResolveRequest, name: str, url: str, problems: Mapping[Version, str]
) -> NoWheelFits:
    address = without_credentials(url)
    if not problems:
        return NoWheelFits(
            f"{address} lists no {name} that was requested.",
            advice=f"Name another page or index for {name} in spec.yml, or take it out there.",
        )
    reasons = [f"{version} {problems[version]}" for version in sorted(problems, reverse=True)]
    if len(reasons) > MAX_REASONS:
        reasons[MAX_REASONS:] = [f"{len(reasons) - MAX_REASONS} older ones do not fit either"]
    build = f"Python {request.python}"
    if request.torch:
        cuda = f"CUDA {request.torch.cuda}" if request.torch.cuda else "CPUs"
        build = f"torch {request.torch.torch}, {cuda} and {build}"
    return NoWheelFits(
        f"{address} has no {name} for {build}: {'; '.join(reasons)}.",
        advice=f"Name a page that has one, or a wheel ('{name} @ https://...whl'); or take the page "
        f"out of `find_links`: then provision builds {name} once, where it is locked.",
    )
