"""`provision channel mirror`: every file of some locks, in a folder for use without network."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from provision import lockfile as locks
from provision.adapters import conda, http, uv
from provision.catalog import facts
from provision.core.atomic import atomic_write
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec, ProvisionError
from provision.core.file_locks import environment_lock
from provision.core.paths import FACTS
from provision.core.types import LockedPackage
from provision.verbs.channel import mirror_folder
from provision.verbs.channel.mirror_folder import MirrorFile
from provision.workflow.context import Context
from provision.workflow.lock import lock_file


@frozen
class MirrorResult:
    """What a mirror holds, and what was downloaded; with dry_run, what would be.

    reused: how many files it had.
    """

    folder: Path
    files: int
    bytes: int
    fetched: tuple[str, ...]
    reused: int
    dry_run: bool = False


def preview(
    context: Context, targets: Sequence[str], folder: Path, platforms: Sequence[str]
) -> MirrorResult:
    """What `mirror` would fetch. Uses no network."""
    files = _files_of_locks(context, targets, platforms)
    return _result(folder, files, _missing(folder, files), dry_run=True)


def mirror(
    context: Context, targets: Sequence[str], folder: Path, platforms: Sequence[str]
) -> MirrorResult:
    """Fetch missing files, then write repodata, index and manifest for all that are present.

    A file gets its name only when its hash is right. Raises for the first file that could not be
    fetched, after all others were.
    """
    files = _files_of_locks(context, targets, platforms)
    name = f"+mirror-{hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]}"
    with environment_lock(context.folders, name, context.progress, wait=context.wait):
        mirror_folder.read_manifest(folder)  # a damaged one is refused before the first download
        missing = _missing(folder, files)
        failures = _fetch(context, folder, missing)
        failed_paths = {file.path for file, _ in failures}
        present = [file for file in files if file.path not in failed_paths]
        mirror_folder.write(folder, present, _conda_records(context, folder, present))
        # For `provision facts update` where no network is.
        atomic_write(folder / FACTS, facts.facts_text())
        if failures:
            raise _first_failure(failures, len(files))
        return _result(folder, files, missing)


def _files_of_locks(
    context: Context, targets: Sequence[str], platforms: Sequence[str]
) -> list[MirrorFile]:
    entries: list[LockedPackage] = []
    for target in targets:
        entries += locks.read_file(lock_file(context, target)).entries
    locked_platforms = {entry.platform for entry in entries}
    unknown = sorted(set(platforms) - locked_platforms)
    if unknown:
        raise InvalidSpec(
            f"None of these locks is for {', '.join(unknown)}.",
            advice=f"They are for {', '.join(sorted(locked_platforms))}.",
        )
    if platforms:
        entries = [entry for entry in entries if entry.platform in platforms]
    return mirror_folder.unique_files(
        mirror_folder.mirror_file(entry.manager, entry.name, entry.url, entry.sha256)
        for entry in entries
    )


def _missing(folder: Path, files: Sequence[MirrorFile]) -> list[MirrorFile]:
    """The files that are absent, or have another content."""

    def is_present(file: MirrorFile) -> bool:
        path = folder / file.path
        return path.is_file() and http.sha256_of(path) == file.sha256

    missing = {file.path for file, present in http.in_parallel(is_present, files) if not present}
    return [file for file in files if file.path in missing]


def _fetch(
    context: Context, folder: Path, missing: Sequence[MirrorFile]
) -> list[tuple[MirrorFile, ProvisionError]]:
    """Download files; returns those that could not be fetched."""
    if not missing:
        return []
    context.progress.info(f"fetching {len(missing)} files into {folder}")
    by_path = {folder / file.path: file for file in missing}
    downloads, failures = [], []
    for path, file in by_path.items():
        try:
            url = context.mirrors.actual_url(file.url, file.sha256)
        except ProvisionError as error:
            failures.append((file, error))
        else:
            downloads.append(http.Download(url=url, sha256=file.sha256, target=path))
    with (
        http.HttpClient(uv.pip_settings()) as web,
        context.progress.meter("fetching", len(downloads)) as meter,
    ):
        for download, failure in web.download(downloads, lambda _: meter.advance(1)):
            failures.append((by_path[download.target], failure))
    return failures


def _conda_records(
    context: Context, folder: Path, files: Sequence[MirrorFile]
) -> dict[str, conda.RepodataRow]:
    """The channels' records of their packages, which solvers use.

    For a channel that does not respond, the records are those in the packages themselves.
    """
    packages = [file for file in files if file.manager == "conda"]
    published, unreachable = conda.published_rows([file.url for file in packages], context.mirrors)
    for channel, reason in unreachable.items():
        context.progress.warn(
            f"{channel} did not respond ({reason}): using the records in its packages, without "
            "the channel's corrections"
        )
    records = {}
    for file in packages:
        records[file.url] = published.get(file.url) or conda.read_archive_row(folder / file.path)
    return records


def _first_failure(
    failures: Sequence[tuple[MirrorFile, ProvisionError]], total: int
) -> ProvisionError:
    """The first error, which decides the exit code, with the number of all."""
    error = failures[0][1]
    if len(failures) > 1:
        error.message = (
            f"{len(failures)} of {total} files could not be fetched; the first: {error.message}"
        )
        error.details = "\n".join(failure.message for _, failure in failures)
    error.advice = (
        f"{error.advice} What was fetched stays: run the same command again to continue."
    ).strip()
    return error


def _result(
    folder: Path,
    files: Sequence[MirrorFile],
    missing: Sequence[MirrorFile],
    *,
    dry_run: bool = False,
) -> MirrorResult:
    paths = [folder / file.path for file in files]
    return MirrorResult(
        folder=folder,
        files=len(files),
        bytes=sum(path.stat().st_size for path in paths if path.is_file()),
        fetched=tuple(file.path for file in missing),
        reused=len(files) - len(missing),
        dry_run=dry_run,
    )
