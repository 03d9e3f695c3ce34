"""What channels publish of locked packages: whole rows of repodata, corrections included, of which a lock holds a part."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from provision.adapters.conda.calls import again, client, last_cause, run
from provision.adapters.conda.channels import channel_url
from provision.core.errors import IntegrityError, Unreachable
from provision.core.mirrors import NO_MIRRORS, Mirrors

# A record as repodata.json has it.
RepodataRow = Mapping[str, Any]


def published_rows(
    urls: Iterable[str], mirrors: Mirrors = NO_MIRRORS
) -> tuple[dict[str, RepodataRow], dict[str, str]]:
    """The rows of packages by their addresses, as far as their channels have them; and the channels that did not answer, each with
    the reason."""
    found: dict[str, RepodataRow] = {}
    silent: dict[str, str] = {}
    for channel, files in _by_channel(urls).items():
        try:
            found |= _of_channel(channel, files, mirrors)
        except Unreachable as error:
            silent[channel] = error.message.rstrip(".")
    return found, silent


def _by_channel(urls: Iterable[str]) -> dict[str, dict[tuple[str, str], str]]:
    """Channel -> platform folder and file -> address."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for url in urls:
        channel, subdir, filename = url.rsplit("/", 2)
        found.setdefault(f"{channel}/", {})[subdir, filename] = url
    return found


def _of_channel(
    channel: str, files: Mapping[tuple[str, str], str], mirrors: Mirrors
) -> dict[str, RepodataRow]:
    import rattler
    from rattler.exceptions import GatewayError

    place = rattler.Channel(mirrors.actual_url(channel_url(channel)))
    names = sorted({filename.rsplit("-", 2)[0] for _, filename in files})
    subdirs = [rattler.Subdir(subdir) for subdir in sorted({subdir for subdir, _ in files})]

    def ask() -> list[list[rattler.RepoDataRecord]]:
        return run(
            rattler.Gateway(client=client(whole=True)).query(
                [place], subdirs, names, recursive=False
            )
        )

    try:
        answers = again(ask, GatewayError)
    except GatewayError as error:
        raise Unreachable(f"{last_cause(error)}.") from error
    there = {
        (str(record.subdir), record.file_name): record for answer in answers for record in answer
    }
    return {url: _plain(there[key].to_json()) for key, url in files.items() if key in there}


def _plain(text: str) -> RepodataRow:
    """Without what says where the record is from."""
    return {
        key: value for key, value in json.loads(text).items() if key not in ("url", "channel", "fn")
    }


def read_archive_row(path: Path) -> RepodataRow:
    """The record of a package file, from what is in it. Raises IntegrityError."""
    import rattler

    try:
        return _plain(run(rattler.RepoDataRecord.from_package_archive(path)).to_json())
    except Exception as error:
        raise IntegrityError(f"{path} is no conda package: {last_cause(error)}.") from error
