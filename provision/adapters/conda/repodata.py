"""What channels say of packages, for one request: to explain why there is no answer, or why it is this one. Decides nothing."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provision.adapters.conda.calls import run
from provision.adapters.conda.channels import channel_url
from provision.adapters.conda.solver import Solver, SolveRequest, end_of
from provision.core.types import Platform

if TYPE_CHECKING:
    import rattler

CLOSE = 3


@dataclass(frozen=True, kw_only=True)
class ChannelRecord:
    """One record of a channel."""

    name: str
    version: str
    build: str
    channel: str  # as the request names it
    filename: str
    depends: tuple[str, ...]
    constrains: tuple[str, ...]
    date: str | None  # YYYY-MM-DD: when it was indexed, or else built
    visible: bool  # under the request's --as-of


class ChannelRecords:
    """The records behind a request; what a solver has read already is not read again."""

    def __init__(self, solver: Solver, request: SolveRequest) -> None:
        self._solver, self._request = solver, request
        self._read: dict[tuple[str, str, Platform], list[rattler.RepoDataRecord]] = {}

    def find(self, spec: str, platform: Platform | None = None) -> tuple[ChannelRecord, ...]:
        """The records that a requirement admits, each channel's apart and in order of priority, newest first."""
        asked, _, rest = spec.rpartition("::")
        channels = [
            name
            for name in self._request.channels
            if not asked or channel_url(name) == channel_url(asked)
        ]
        found: list[ChannelRecord] = []
        for name in channels:
            records = self._query(name, rest, platform or self._request.platform)
            found += [self._record(record, name) for record in sorted(records, reverse=True)]
        return tuple(found)

    def _query(self, channel: str, spec: str, platform: Platform) -> list[rattler.RepoDataRecord]:
        import rattler

        if (channel, spec, platform) not in self._read:
            sources = [rattler.Channel(self._solver.mirrors.actual_url(channel_url(channel)))]
            query = self._solver.gateway().query(
                sources, [platform, "noarch"], [rattler.MatchSpec(spec)], recursive=False
            )
            self._read[channel, spec, platform] = [record for part in run(query) for record in part]
        return self._read[channel, spec, platform]

    def _record(self, record: rattler.RepoDataRecord, channel: str) -> ChannelRecord:
        date = record.indexed_timestamp or record.timestamp
        limit = end_of(self._request.as_of) if self._request.as_of else None
        return ChannelRecord(
            name=record.name.normalized,
            version=str(record.version),
            build=str(record.build),
            channel=channel,
            filename=record.file_name,
            depends=tuple(record.depends),
            constrains=tuple(record.constrains),
            date=date.strftime("%Y-%m-%d") if date else None,
            visible=limit is None or (date is not None and date <= limit),
        )

    def meet(self, constraints: Sequence[str]) -> bool:
        """Whether one record of a package meets several requirements for it at once. A virtual package is met by what is assumed."""
        import rattler

        specs = [rattler.MatchSpec(text) for text in constraints]
        name = constraints[0].split()[0]
        channels = self._request.channels
        records = [
            record
            for channel in channels
            for record in self._query(channel, name, self._request.platform)
        ]
        return any(all(spec.matches(record) for spec in specs) for record in records)

    def holds(self, channel: str, platform: Platform) -> frozenset[str]:
        """The names of the packages that a channel has for a platform alone (not noarch)."""
        import rattler

        sources = [rattler.Channel(self._solver.mirrors.actual_url(channel_url(channel)))]
        return frozenset(
            name.normalized for name in run(self._solver.gateway().names(sources, [platform]))
        )

    def close(self, name: str) -> list[str]:
        """Names in the request's channels that look like one that is not there."""
        import rattler

        sources = [
            rattler.Channel(self._solver.mirrors.actual_url(channel_url(channel)))
            for channel in self._request.channels
        ]
        names = run(self._solver.gateway().names(sources, [self._request.platform, "noarch"]))
        return difflib.get_close_matches(
            name, sorted({found.normalized for found in names}), CLOSE, 0.75
        )
