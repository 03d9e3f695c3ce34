"""What channels publish: the records behind a solve request, which explain its result or its
failure; and whole rows of repodata.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.adapters.conda.calls import innermost_cause, may_pass, new_gateway, run
from provision.adapters.conda.logins import public_url
from provision.adapters.conda.matchspec import channel_url
from provision.adapters.conda.solver import Solver, SolveRequest, end_of_day
from provision.adapters.http import retry
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError, Unreachable
from provision.core.mirrors import NO_MIRRORS, Mirrors

if TYPE_CHECKING:
    import rattler

# Suggestions for a name that no channel has: how many, and how similar they must be.
SIMILAR_NAMES, SIMILARITY = 3, 0.75
# The packages of channels that hold torch.
TORCH_PACKAGES = frozenset(("pytorch", "libtorch", "pytorch-cpu", "pytorch-gpu"))
# A record as repodata.json has it.
RepodataRow = Mapping[str, Any]
# Keys that say where rattler read a row, and are not in repodata.json.
ORIGIN_KEYS = ("url", "channel", "fn")


@frozen
class ChannelRecord:
    """One record of a channel."""

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
            for record in sorted(records, reverse=True):
                matching.append(self._channel_record(record, channel))
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
        sources = [self._solver.source(channel) for channel in self._request.channels]
        names = run(self._solver.gateway().names(sources, [self._request.platform, "noarch"]))
        existing = sorted({existing.normalized for existing in names})
        return difflib.get_close_matches(name, existing, SIMILAR_NAMES, SIMILARITY)


def published_rows(
    urls: Iterable[str], mirrors: Mirrors = NO_MIRRORS
) -> tuple[dict[str, RepodataRow], dict[str, str]]:
    """The rows of locked packages by URL, corrections included, as far as their channels have
    them; and the channels that did not answer, each with the reason. A lock holds only a part of
    a row."""
    by_channel: dict[str, dict[tuple[str, str], str]] = {}
    for url in urls:
        channel, subdir, filename = url.rsplit("/", 2)
        by_channel.setdefault(f"{channel}/", {})[subdir, filename] = url
    rows: dict[str, RepodataRow] = {}
    silent: dict[str, str] = {}
    for channel, files in by_channel.items():
        try:
            rows |= _rows_of_channel(channel, files, mirrors)
        except Unreachable as error:
            silent[channel] = error.message.rstrip(".")
    return rows, silent


def _rows_of_channel(
    channel: str, files: Mapping[tuple[str, str], str], mirrors: Mirrors
) -> dict[str, RepodataRow]:
    """files: URL by subdir and file name."""
    import rattler
    from rattler.exceptions import GatewayError

    source = rattler.Channel(public_url(mirrors.actual_url(channel_url(channel))))
    names = sorted({filename.rsplit("-", 2)[0] for _, filename in files})
    subdirs = [rattler.Subdir(subdir) for subdir in sorted({subdir for subdir, _ in files})]

    def query() -> list[list[rattler.RepoDataRecord]]:
        return run(new_gateway().query([source], subdirs, names, recursive=False))

    try:
        results = retry(query, GatewayError, may_pass)
    except GatewayError as error:
        raise Unreachable(f"{innermost_cause(error)}.") from error
    rows = {}
    for records in results:
        for record in records:
            url = files.get((str(record.subdir), record.file_name))
            if url is not None:
                rows[url] = _row(record)
    return rows


def _row(record: rattler.RepoDataRecord) -> RepodataRow:
    content = json.loads(record.to_json())
    return {key: value for key, value in content.items() if key not in ORIGIN_KEYS}


def read_archive_row(path: Path) -> RepodataRow:
    """The row of a package file, from its content. Raises IntegrityError."""
    import rattler

    try:
        return _row(run(rattler.RepoDataRecord.from_package_archive(path)))
    except Exception as error:
        raise IntegrityError(f"{path} is not a conda package: {innermost_cause(error)}.") from error
