"""Solves conda requirements: exactly the packages that satisfy them, from the channels' records."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, TypeVar

from provision.adapters.conda.calls import (
    details,
    innermost_cause,
    may_pass,
    network_advice,
    new_gateway,
    run,
)
from provision.adapters.conda.logins import login_count, public_url
from provision.adapters.conda.matchspec import channel_url
from provision.adapters.http import read_timeout_s, retry
from provision.core.credentials import without_credentials, without_login
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError, Unreachable, Unsolvable
from provision.core.mirrors import NO_MIRRORS, Mirrors
from provision.core.platforms import PLATFORM, Platform
from provision.core.types import LockedPackage, needs_python

if TYPE_CHECKING:
    import rattler

T = TypeVar("T")

# Long enough for a slow mirror's first byte, short enough that a firewall that drops packets does
# not look like a hang.
CHANNEL_TIMEOUT_S = 20.0


@frozen
class SolveRequest:
    """What to solve, for one platform."""

    specs: tuple[str, ...]
    channels: tuple[str, ...]  # in order of priority, by name or URL
    virtual_packages: tuple[tuple[str, str], ...]
    platform: Platform = PLATFORM
    # Hold for a package if it becomes part of the result, but do not require it.
    bounds: tuple[str, ...] = ()
    # Packages of an earlier lock: stay where they can, as far as the channels still have them.
    prefer: tuple[LockedPackage, ...] = ()
    # YYYY-MM-DD: records newer than the end of that day (UTC), or without a date, are invisible.
    as_of: str | None = None


class Solver:
    """Solves against channels.

    rattler's gateway caches what it has read of them, so many solves cost one reading; several
    threads may share a solver. Memory stays flat: the cache holds only the records of packages that
    were looked at.
    """

    def __init__(self, mirrors: Mirrors = NO_MIRRORS) -> None:
        self.mirrors = mirrors
        self._gateway_lock = threading.Lock()
        self._gateway: rattler.Gateway | None = None
        self._gateway_logins = 0  # known when the gateway was made

    def gateway(self) -> rattler.Gateway:
        with self._gateway_lock:
            if self._gateway is None or self._gateway_logins != login_count():
                self._gateway_logins = login_count()
                self._gateway = new_gateway()
            return self._gateway

    def source(self, channel: str) -> rattler.Channel:
        """The channel where its mirror is."""
        import rattler

        return rattler.Channel(public_url(self.mirrors.actual_url(channel_url(channel))))

    def solve(self, request: SolveRequest) -> tuple[LockedPackage, ...]:
        """The packages, sorted by name. Raises Unsolvable or Unreachable; never returns only some
        of them."""
        urls = self._channel_urls(request)
        packages = [_locked(record, urls, request.platform) for record in self._records(request)]
        return tuple(sorted(packages, key=lambda package: package.name))

    def is_solvable(self, request: SolveRequest) -> bool:
        """Whether there is a solution; the packages are not looked at."""
        try:
            self._records(request)
        except Unsolvable:
            return False
        return True

    def python_packages(self, request: SolveRequest, names: Iterable[str]) -> set[str]:
        """Those of the names that are Python packages in the request's channels.

        A C library may have the name of another project's wheel (xxhash, zstd, graphviz).
        """
        python_packages = set()
        for record in self.records(request, list(names)):
            if needs_python(dependency.split()[0] for dependency in record.depends):
                python_packages.add(record.name.normalized)
        return python_packages

    def records(
        self, request: SolveRequest, specs: Sequence[rattler.MatchSpec | str]
    ) -> list[rattler.RepoDataRecord]:
        """The records of a request's channels that requirements admit, channel by channel. Raises
        Unreachable."""
        import rattler

        sources = [rattler.Channel(url) for url in self._channel_urls(request)]

        def read() -> list[rattler.RepoDataRecord]:
            query = self.gateway().query(
                sources, [request.platform, "noarch"], list(specs), recursive=False
            )
            return [record for records in run(query) for record in records]

        return _from_channels(request, read)

    def unreachable_channels(self, channels: Sequence[str], platform: Platform) -> dict[str, str]:
        """Channels that do not serve records for a platform, each with the reason. Asks all at
        once, ANSWER_TIMEOUT_S each."""
        return run(self._unreachable_channels(channels, platform))

    async def _unreachable_channels(
        self, channels: Sequence[str], platform: Platform
    ) -> dict[str, str]:
        import asyncio

        from rattler.exceptions import GatewayError

        timeout_s = min(CHANNEL_TIMEOUT_S, read_timeout_s())

        async def failure(channel: str) -> str | None:
            try:
                query = self.gateway().query(
                    [self.source(channel)], [platform, "noarch"], ["python"], recursive=False
                )
                await asyncio.wait_for(query, timeout_s)
            except asyncio.TimeoutError:
                return f"no answer within {timeout_s:.0f} s"
            except Unreachable as error:
                return error.message.rstrip(".")
            except GatewayError as error:
                return innermost_cause(error)
            return None

        reasons = await asyncio.gather(*(failure(channel) for channel in channels))
        return {channel: reason for channel, reason in zip(channels, reasons) if reason is not None}

    def _channel_urls(self, request: SolveRequest) -> dict[str, str]:
        """Each channel's own URL by the URL where it is read, in order of priority."""
        urls = {}
        for channel in request.channels:
            url = channel_url(channel)
            urls[public_url(self.mirrors.actual_url(url))] = url
        return urls

    def _records(self, request: SolveRequest) -> list[rattler.RepoDataRecord]:
        import rattler
        from rattler.exceptions import SolverError

        sources = [rattler.Channel(url) for url in self._channel_urls(request)]

        def solve() -> list[rattler.RepoDataRecord]:
            return run(
                rattler.solve(
                    sources,
                    [self._matchspec(spec) for spec in request.specs],
                    gateway=self.gateway(),
                    platforms=[request.platform, "noarch"],
                    virtual_packages=list(starmap(_virtual_package, request.virtual_packages)),
                    constraints=[self._matchspec(bound) for bound in request.bounds],
                    locked_packages=self._preferred_records(request),
                    exclude_newer=end_of_day(request.as_of) if request.as_of else None,
                )
            )

        try:
            return _from_channels(request, solve)
        except SolverError as error:
            raise Unsolvable(
                f"No set of packages in {', '.join(request.channels)} satisfies "
                f"{', '.join(request.specs)}.",
                advice="Loosen a requirement, or name a channel that has the package with "
                "--channel.",
                details=details(error),
            ) from error

    def _preferred_records(self, request: SolveRequest) -> list[rattler.RepoDataRecord]:
        """The channels' own records of the preferred packages: a lock holds only a part of a
        record."""
        import rattler

        if not request.prefer:
            return []
        specs = [
            rattler.MatchSpec(f"{package.name} =={package.version} {package.build}")
            for package in request.prefer
        ]
        preferred_urls = {package.url for package in request.prefer}
        channel_urls = self._channel_urls(request)
        return [
            record
            for record in self.records(request, specs)
            if _canonical_url(record, channel_urls) in preferred_urls
        ]

    def _matchspec(self, spec: str) -> rattler.MatchSpec:
        """A requirement as rattler understands it; `channel::package` names the channel where it is
        read."""
        import rattler

        matchspec = rattler.MatchSpec(spec)
        if matchspec.channel is None:
            return matchspec
        url = channel_url(matchspec.channel.base_url)
        actual_url = public_url(self.mirrors.actual_url(url))
        if actual_url == url:
            return matchspec
        return rattler.MatchSpec(f"{actual_url}::{str(matchspec).partition('::')[2]}")


def _from_channels(request: SolveRequest, read: Callable[[], T]) -> T:
    """What reading the channels gives. Raises Unreachable."""
    from rattler.exceptions import GatewayError

    try:
        return retry(read, GatewayError, may_pass)
    except GatewayError as error:
        raise Unreachable(
            f"A channel among {', '.join(request.channels)} did not answer: "
            f"{innermost_cause(error)}.",
            advice=network_advice(error),
            details=details(error),
        ) from error


def end_of_day(day: str) -> datetime.datetime:
    """The last moment of a day, UTC."""
    start = datetime.datetime.fromisoformat(day).replace(tzinfo=datetime.timezone.utc)
    return start + datetime.timedelta(days=1) - datetime.timedelta(milliseconds=1)


def _virtual_package(name: str, version: str) -> rattler.GenericVirtualPackage:
    import rattler
    from rattler.package.build_string import BuildString

    number, _, build = version.partition(" ")
    return rattler.GenericVirtualPackage(
        rattler.PackageName(name), rattler.Version(number), BuildString(build or "0")
    )


def _locked(
    record: rattler.RepoDataRecord, channel_urls: Mapping[str, str], platform: Platform
) -> LockedPackage:
    url = _canonical_url(record, channel_urls)
    if not record.sha256:
        raise IntegrityError(
            f"{url} has no sha256 in its channel's repodata, so it cannot be locked.",
            advice="Request another build of it; or ask the channel's owner to index it again.",
        )
    return LockedPackage(
        manager="conda",
        name=record.name.normalized,
        version=str(record.version),
        url=url,
        sha256=record.sha256.hex(),
        md5=record.md5.hex() if record.md5 else None,
        build=str(record.build),
        depends=tuple(record.depends),
        platform=platform,
    )


def _canonical_url(record: rattler.RepoDataRecord, channel_urls: Mapping[str, str]) -> str:
    """A package's URL under its channel's own, wherever a mirror says that its packages lie;
    without a mirror, the record's own.

    Never with a credential: rattler leaves it in a record's URL, and hides it in the channel's
    (tried).
    """
    read_at = without_login((record.channel or "").rstrip("/") + "/")
    for actual_url, canonical in channel_urls.items():
        if without_login(actual_url) == read_at and canonical != actual_url:
            return without_credentials(f"{canonical}{record.subdir}/{record.file_name}")
    return without_credentials(record.url)
