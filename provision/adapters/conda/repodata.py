"""What channels publish: the records behind a solve request, which explain its result or its
failure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from provision.adapters.conda.calls import run
from provision.adapters.conda.matchspec import channel_url
from provision.adapters.conda.solver import Solver, SolveRequest, end_of_day
from provision.core.dataclass import frozen

if TYPE_CHECKING:
    import rattler

# Suggestions for a name that no channel has: how many, and how similar they must be.
SIMILAR_NAMES, SIMILARITY = 3, 0.75
# The packages of channels that hold torch.
TORCH_PACKAGES = frozenset(("pytorch", "libtorch", "pytorch-cpu", "pytorch-gpu"))


@frozen
class ChannelRecord:
    """A package that a channel has."""

    version: str
    build: str
    channel: str  # as the request names it
    depends: tuple[str, ...]
    date: str | None  # YYYY-MM-DD: when it was indexed, or else built
    visible: bool  # under the request's `as_of`


class ChannelRecords:
    """The records behind a request. Shares the solver's cache, so no repodata is read twice."""

    def __init__(self, solver: Solver, request: SolveRequest) -> None:
        self._solver, self._request = solver, request

    def find_visible(self, spec: str) -> tuple[ChannelRecord, ...]:
        """Those that the solver may choose."""
        return tuple(record for record in self.find(spec) if record.visible)

    def find(self, spec: str) -> tuple[ChannelRecord, ...]:
        """The records that a requirement admits: by channel in order of priority, newest first."""
        import rattler

        spec_channel, _, spec_in_channel = spec.rpartition("::")
        matching: list[ChannelRecord] = []
        for channel in self._request.channels:
            if spec_channel and channel_url(channel) != channel_url(spec_channel):
                continue
            request = replace(self._request, channels=(channel,))
            records = self._solver.records(request, [rattler.MatchSpec(spec_in_channel)])
            matching.extend(
                self._channel_record(record, channel) for record in sorted(records, reverse=True)
            )
        return tuple(matching)

    def _channel_record(self, record: rattler.RepoDataRecord, channel: str) -> ChannelRecord:
        date = record.indexed_timestamp or record.timestamp
        visible = True
        if self._request.as_of:
            visible = date is not None and date <= end_of_day(self._request.as_of)
        return ChannelRecord(
            version=str(record.version),
            build=str(record.build),
            channel=channel,
            depends=tuple(record.depends),
            date=date.strftime("%Y-%m-%d") if date else None,
            visible=visible,
        )

    def with_torch(self, specs: Iterable[str]) -> list[str]:
        """Those of some requirements whose newest record itself requires conda's own torch."""
        requiring = []
        for spec in specs:
            for record in self.find(spec)[:1]:
                names = {text.split()[0] for text in record.depends}
                if names & TORCH_PACKAGES:
                    requiring.append(spec)
        return requiring

    def similar_names(self, name: str) -> list[str]:
        """Names in the request's channels that resemble one that no channel has."""
        import difflib

        sources = [self._solver.source(channel) for channel in self._request.channels]
        names = run(self._solver.gateway().names(sources, [self._request.platform, "noarch"]))
        existing = sorted({existing.normalized for existing in names})
        return difflib.get_close_matches(name, existing, SIMILAR_NAMES, SIMILARITY)
