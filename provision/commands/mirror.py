"""`provision channel mirror`: everything that locks name, as a folder that needs no network."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision import lockfile as locks
from provision.adapters import conda, http, uv
from provision.channel import mirror as mirroring
from provision.channel.mirror import MirrorFile
from provision.commands.lock_inspect import lock_file
from provision.commands.plan import Context
from provision.core.errors import InvalidSpec, ProvisionError
from provision.core.file_locks import environment_lock


@dataclass(frozen=True, kw_only=True)
class Mirrored:
    """What a mirror holds, and what was, or would be, done to it."""

    folder: Path
    files: int
    bytes: int
    fetched: tuple[str, ...]
    kept: int
    removed: tuple[str, ...]
    dry_run: bool = False


def preview(
    context: Context, targets: Sequence[str], folder: Path, *, platforms: Sequence[str], prune: bool
) -> Mirrored:
    """What `mirror` would fetch and remove; asks nobody."""
    wanted = _wanted(context, targets, platforms)
    missing = _missing(folder, wanted)
    removed = mirroring.unreferenced(folder, {file.path for file in wanted}) if prune else []
    return _result(folder, wanted, missing, removed, dry_run=True)


def mirror(
    context: Context, targets: Sequence[str], folder: Path, *, platforms: Sequence[str], prune: bool
) -> Mirrored:
    """Fetch what is missing, each file under its name only when its hash is right, then write repodata, index and manifest for all that is
    there. Raises for the first file that could not be had, after the others were."""
    wanted = _wanted(context, targets, platforms)
    name = f"+mirror-{hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]}"
    with environment_lock(context.where, name, context.progress, wait=context.wait):
        mirroring.read_manifest(folder)  # a damaged one is refused before the first download
        missing = _missing(folder, wanted)
        failed = _fetch(context, folder, missing)
        lost = {file.path for file, _ in failed}
        there = [file for file in wanted if file.path not in lost]
        removed = mirroring.write(
            folder, there, _records(context, folder, there), prune=prune and not failed
        )
        for path in removed:
            path.unlink()
            _remove_empty(path.parent, folder)
        if failed:
            raise _failure(failed, len(wanted))
        return _result(folder, wanted, missing, removed)


def _wanted(context: Context, targets: Sequence[str], platforms: Sequence[str]) -> list[MirrorFile]:
    found = [locks.read_file(lock_file(context, target)) for target in targets]
    there = {entry.platform for lock in found for entry in lock.entries}
    if unknown := sorted(set(platforms) - there):
        raise InvalidSpec(
            f"None of these locks is for {', '.join(unknown)}.",
            advice=f"They are for {', '.join(sorted(there))}.",
        )
    entries = [
        entry
        for lock in found
        for entry in lock.entries
        if not platforms or entry.platform in platforms
    ]
    return mirroring.unique_files(
        mirroring.mirror_file(entry.manager, entry.name, entry.url, entry.sha256)
        for entry in entries
    )


def _missing(folder: Path, wanted: Sequence[MirrorFile]) -> list[MirrorFile]:
    """What is not there, or is there with another content."""

    def good(file: MirrorFile) -> bool:
        path = folder / file.path
        return path.is_file() and http.sha256_of(path) == file.sha256

    kept = {file.path for file, is_good in http.in_parallel(good, wanted) if is_good}
    return [file for file in wanted if file.path not in kept]


def _fetch(
    context: Context, folder: Path, missing: Sequence[MirrorFile]
) -> list[tuple[MirrorFile, ProvisionError]]:
    if not missing:
        return []
    context.progress.say(f"fetching {len(missing)} files into {folder}")
    by_path = {folder / file.path: file for file in missing}
    wanted, failed = [], []
    for path, file in by_path.items():
        try:
            wanted.append(
                http.Download(
                    url=context.mirrors.actual_url(file.url, file.sha256),
                    sha256=file.sha256,
                    target=path,
                )
            )
        except ProvisionError as error:
            failed.append((file, error))
    with (
        http.HttpClient(uv.pip_settings()) as web,
        context.progress.meter("fetching", len(wanted)) as meter,
    ):
        return failed + [
            (by_path[one.target], error)
            for one, error in web.download(wanted, lambda one: meter.advance(1))
        ]


def _records(
    context: Context, folder: Path, there: Sequence[MirrorFile]
) -> dict[str, conda.RepodataRow]:
    """What the channels say of their packages, since that is what solvers go by; of a channel that does not answer, what the packages say
    of themselves."""
    packages = [file for file in there if file.manager == "conda"]
    found, silent = conda.published_rows([file.url for file in packages], context.mirrors)
    for channel, reason in silent.items():
        context.progress.warn(
            f"{channel} did not tell its records ({reason}): the packages' own are used, without the channel's corrections"
        )
    return {
        file.url: found.get(file.url) or conda.read_archive_row(folder / file.path)
        for file in packages
    }


def _remove_empty(folder: Path, top: Path) -> None:
    with contextlib.suppress(OSError):  # not empty
        while folder != top:
            folder.rmdir()
            folder = folder.parent


def _failure(failed: Sequence[tuple[MirrorFile, ProvisionError]], total: int) -> ProvisionError:
    """The first error, with how many there are; its class decides the exit code."""
    error = failed[0][1]
    if len(failed) > 1:
        error.message = (
            f"{len(failed)} of {total} files could not be had; the first: {error.message}"
        )
        error.details = "\n".join(other.message for _, other in failed)
    error.advice = f"{error.advice} What was fetched is kept; run the same command again.".strip()
    return error


def _result(
    folder: Path,
    wanted: Sequence[MirrorFile],
    missing: Sequence[MirrorFile],
    removed: Iterable[Path],
    *,
    dry_run: bool = False,
) -> Mirrored:
    sizes = [path.stat().st_size for file in wanted if (path := folder / file.path).is_file()]
    return Mirrored(
        folder=folder,
        files=len(wanted),
        bytes=sum(sizes),
        fetched=tuple(file.path for file in missing),
        kept=len(wanted) - len(missing),
        removed=tuple(path.relative_to(folder).as_posix() for path in removed),
        dry_run=dry_run,
    )
