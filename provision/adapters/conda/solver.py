"""Requirements -> exactly the packages that satisfy them, from the channels' records."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provision.adapters.conda.calls import again, client, last_cause, run, told, what_to_do
from provision.adapters.conda.channels import channel_url
from provision.adapters.http import read_timeout_s
from provision.core.errors import IntegrityError, Unreachable, Unsolvable
from provision.core.mirrors import NO_MIRRORS, Mirrors, without_login
from provision.core.types import PLATFORM, LockedPackage, Platform

if TYPE_CHECKING:
    import rattler

# Long enough for a slow mirror's first byte, short enough that a firewall that drops packets does not look like a hang.
ANSWER_TIMEOUT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class SolveRequest:
    """What is to be solved, for one platform."""

    specs: tuple[str, ...]
    channels: tuple[str, ...]  # in order of priority, by name or URL
    virtual_packages: tuple[tuple[str, str], ...]
    platform: Platform = PLATFORM
    bounds: tuple[
        str, ...
    ] = ()  # hold for a package if it becomes part of the answer, but do not ask for it
    prefer: tuple[
        LockedPackage, ...
    ] = ()  # of an earlier lock: stay where they can, as far as the channels still have them
    as_of: str | None = (
        None  # YYYY-MM-DD: records newer than the end of that day (UTC), or without a date, are invisible
    )


class Solver:
    """Solves against channels. What it has read of them is kept for the next solve (rattler's gateway), so many solves cost one
    reading; several threads may use one. Memory stays flat: what is kept is the records of the packages that were looked at."""

    def __init__(self, mirrors: Mirrors = NO_MIRRORS) -> None:
        self.mirrors = mirrors
        self._opening = threading.Lock()
        self._opened: rattler.Gateway | None = None

    def gateway(self) -> rattler.Gateway:
        import rattler

        with self._opening:
            if self._opened is None:
                self._opened = rattler.Gateway(client=client(whole=True))
            return self._opened

    def solve(self, request: SolveRequest) -> tuple[LockedPackage, ...]:
        """The packages, sorted by name. Raises Unsolvable or Unreachable; never returns a part."""
        own = self._own(request)
        locked = (_locked(record, own, request.platform) for record in self._records(request))
        return tuple(sorted(locked, key=lambda package: package.name))

    def _own(self, request: SolveRequest) -> dict[str, str]:
        """Where each channel is really read -> its own URL, in order of priority."""
        return {
            self.mirrors.actual_url(channel_url(name)): channel_url(name)
            for name in request.channels
        }

    def _records(self, request: SolveRequest) -> list[rattler.RepoDataRecord]:
        import rattler
        from rattler.exceptions import GatewayError, SolverError

        def solve() -> list[rattler.RepoDataRecord]:
            return run(
                rattler.solve(
                    [rattler.Channel(url) for url in self._own(request)],
                    [self.matchspec(spec) for spec in request.specs],
                    gateway=self.gateway(),
                    platforms=[request.platform, "noarch"],
                    virtual_packages=[
                        _virtual(name, version) for name, version in request.virtual_packages
                    ],
                    constraints=[self.matchspec(bound) for bound in request.bounds],
                    locked_packages=self._still_there(request),
                    exclude_newer=end_of(request.as_of) if request.as_of else None,
                )
            )

        try:
            return again(solve, GatewayError)
        except SolverError as error:
            raise Unsolvable(
                f"No set of packages in {', '.join(request.channels)} satisfies {', '.join(request.specs)}.",
                advice="Loosen a requirement, or name a channel that has the package with --channel; -v shows the solver's words.",
                details=told(error),
            ) from error
        except GatewayError as error:
            raise Unreachable(
                f"A channel among {', '.join(map(without_login, request.channels))} did not answer: {last_cause(error)}.",
                advice=what_to_do(error),
                details=told(error),
            ) from error

    def _still_there(self, request: SolveRequest) -> list[rattler.RepoDataRecord]:
        """The channels' own records of the packages that are preferred: a lock does not hold all that a record says."""
        import rattler

        if not request.prefer:
            return []
        specs = [
            rattler.MatchSpec(f"{package.name} =={package.version} {package.build}")
            for package in request.prefer
        ]
        own, urls = self._own(request), {package.url for package in request.prefer}
        sources = [rattler.Channel(url) for url in own]
        parts = run(
            self.gateway().query(sources, [request.platform, "noarch"], specs, recursive=False)
        )
        return [record for part in parts for record in part if _own_url(record, own) in urls]

    def unreachable_channels(self, channels: Sequence[str], platform: Platform) -> dict[str, str]:
        """Channels that do not serve records for a platform, each with the reason. Asks all, within ANSWER_TIMEOUT_S each."""
        return run(self._ask(channels, platform))

    async def _ask(self, channels: Sequence[str], platform: Platform) -> dict[str, str]:
        import asyncio

        import rattler
        from rattler.exceptions import GatewayError

        patience_s = min(ANSWER_TIMEOUT_S, read_timeout_s())

        async def ask(name: str) -> tuple[str, str | None]:
            try:
                place = rattler.Channel(self.mirrors.actual_url(channel_url(name)))
                query = self.gateway().query(
                    [place], [platform, "noarch"], ["python"], recursive=False
                )
                await asyncio.wait_for(query, patience_s)
            except asyncio.TimeoutError:
                return name, f"no answer within {patience_s:.0f} s"
            except Unreachable as error:
                return name, error.message.rstrip(".")
            except GatewayError as error:
                return name, last_cause(error)
            return name, None

        answers = await asyncio.gather(*(ask(name) for name in channels))
        return {name: reason for name, reason in answers if reason is not None}

    def is_solvable(self, request: SolveRequest) -> bool:
        """Whether there is an answer; the packages are not looked at."""
        try:
            self._records(request)
        except Unsolvable:
            return False
        return True

    def matchspec(self, spec: str) -> rattler.MatchSpec:
        """A requirement as rattler understands it; `channel::package` means the channel as it is served."""
        import rattler

        parsed = rattler.MatchSpec(spec)
        if parsed.channel is None or (
            real := self.mirrors.actual_url(channel_url(parsed.channel.base_url))
        ) == channel_url(parsed.channel.base_url):
            return parsed
        return rattler.MatchSpec(f"{real}::{str(parsed).partition('::')[2]}")


def solve(request: SolveRequest, mirrors: Mirrors = NO_MIRRORS) -> tuple[LockedPackage, ...]:
    """One solve on its own."""
    return Solver(mirrors).solve(request)


def end_of(day: str) -> datetime.datetime:
    """The last moment of a day, UTC."""
    begins = datetime.datetime.fromisoformat(day).replace(tzinfo=datetime.timezone.utc)
    return begins + datetime.timedelta(days=1) - datetime.timedelta(milliseconds=1)


def _virtual(name: str, version: str) -> rattler.GenericVirtualPackage:
    import rattler
    from rattler.package.build_string import BuildString

    number, _, build = version.partition(" ")
    return rattler.GenericVirtualPackage(
        rattler.PackageName(name), rattler.Version(number), BuildString(build or "0")
    )


def _locked(
    record: rattler.RepoDataRecord, own: dict[str, str], platform: Platform
) -> LockedPackage:
    package = LockedPackage(
        manager="conda",
        name=record.name.normalized,
        version=str(record.version),
        url=_own_url(record, own),
        sha256=record.sha256.hex() if record.sha256 else "",
        md5=record.md5.hex() if record.md5 else None,
        build=str(record.build),
        depends=tuple(record.depends),
        platform=platform,
    )
    if not package.sha256 or not package.md5:
        raise IntegrityError(
            f"{package.url} has no {'md5' if package.sha256 else 'sha256'} in its channel's repodata, so it cannot be locked.",
            advice="Ask the channel's owner to index it again, or use another channel.",
        )
    return package


def _own_url(record: rattler.RepoDataRecord, own: Mapping[str, str]) -> str:
    """By the channel's own URL, wherever a mirror says that its packages lie; a channel that is no mirror is taken by its word.
    Without a password in any case: rattler leaves it in a record's URL, and hides it in the channel's (tried)."""
    by_place = {without_login(real): (real, channel) for real, channel in own.items()}
    place = without_login((record.channel or "").rstrip("/") + "/")
    real, channel = by_place.get(place, (place, place))
    return without_login(
        record.url if channel == real else f"{channel}{record.subdir}/{record.file_name}"
    )
