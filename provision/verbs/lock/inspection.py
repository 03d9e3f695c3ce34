"""`provision lock verify`, `diff` and `export`.

A lock is named by its environment or by its file, whoever made it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from provision import lockfile as locks
from provision.adapters import conda, http, uv
from provision.core import prefix_registry
from provision.core.errors import Unreachable
from provision.core.requirement_urls import is_source
from provision.core.sbom import Licenses, prefix_licenses
from provision.workflow.context import Context
from provision.workflow.lock import environments_with_lock, lock_file

T = TypeVar("T")


def verify_locks(
    context: Context, targets: Sequence[str], *, offline: bool
) -> list[locks.VerifyReport]:
    """What is wrong with each lock. Without targets: every lock of the envs folder."""
    targets = targets or environments_with_lock(context)
    files = [locks.read_file(lock_file(context, target)) for target in targets]
    remote = locks.RemoteFacts() if offline else _remote_facts(context, files)
    return [locks.verify_lock(file, remote, target) for target, file in zip(targets, files)]


def _remote_facts(context: Context, files: Sequence[locks.LockFile]) -> locks.RemoteFacts:
    """What servers and channels, or their mirrors, say about all files of the locks.

    Each file is asked for once.
    """
    # A git repository or an editable folder is no file that a server has.
    entries = [entry for file in files for entry in file.entries if not is_source(entry.url)]
    hashes = {entry.url: entry.sha256 for entry in entries}
    # An address without a channel has no records.
    conda_urls = {
        entry.url for entry in entries if entry.manager == "conda" and entry.url.count("/") > 3
    }
    wheel_urls = {entry.url for entry in entries if entry.manager == "pip"}
    records, unanswered = conda.published_rows(conda_urls, context.mirrors)
    for channel, reason in unanswered.items():
        context.progress.info(f"{channel} did not answer: {reason}")
    constrains = {url: tuple(record.get("constrains", ())) for url, record in records.items()}
    with http.HttpClient(uv.pip_settings()) as web:

        def availability(url: str) -> http.Availability:
            try:
                return web.availability(context.mirrors.actual_url(url, hashes[url]), hashes[url])
            except Unreachable as error:
                return http.Availability(state="gone", detail=error.message.rstrip("."))

        def metadata(url: str) -> uv.WheelMetadata | str:
            """What a wheel says about itself, or why it cannot be read."""
            if served[url].state != "available":
                return "its file is not available"
            if not url.partition("#")[0].endswith(".whl"):
                return "it is not a wheel, and its requirements are known only once it is built"
            try:
                return uv.fetch_metadata(web, context.mirrors.actual_url(url, hashes[url]))
            except Unreachable as error:
                return error.message.rpartition(": ")[2].rstrip(".")

        served = _in_parallel(context, "checking files", sorted(hashes), availability)
        return locks.RemoteFacts(
            served=served,
            constrains=constrains,
            metadata=_in_parallel(
                context, "reading requirements of wheels", sorted(wheel_urls), metadata
            ),
        )


def _in_parallel(
    context: Context, title: str, urls: Sequence[str], function: Callable[[str], T]
) -> dict[str, T]:
    """The function's result for every URL, several at a time, with a progress bar."""
    results = {}
    with context.progress.meter(title, len(urls)) as meter:
        for url, result in http.in_parallel(function, urls):
            results[url] = result
            meter.advance(1)
    return results


def diff_locks(context: Context, before: str, after: str) -> locks.LockDiff:
    """What changed from one lock to another."""
    old = locks.read_file(lock_file(context, before))
    return locks.diff_locks(old, locks.read_file(lock_file(context, after)), (before, after))


@dataclass(frozen=True, kw_only=True)
class ExportedLock:
    """A lock in another format, and what that format cannot hold."""

    text: str
    left_out: tuple[str, ...]  # name and version
    notes: tuple[str, ...]


def export_lock(
    context: Context, target: str, *, kind: locks.ExportFormat, platform: str | None, licenses: bool
) -> ExportedLock:
    """The lock in another format. licenses: add them to an SBOM, if its prefix is installed."""
    path = lock_file(context, target)
    lock = locks.read_file(path)
    name = path.parent.name if path.name == locks.FILE else ""
    name = name or path.stem
    by_package: Licenses = {}
    if licenses and kind == "cyclonedx":
        by_package = _licenses(context, name, lock)
    epoch = None
    if os.environ.get("SOURCE_DATE_EPOCH"):
        from provision.image import source_date_epoch

        epoch = source_date_epoch(os.environ)
    platforms = locks.export_platforms(lock, kind, platform)
    text = locks.export_lock(lock, name, kind, *platforms, licenses=by_package, epoch=epoch)
    left_out: list[str] = []
    notes: list[str] = []
    for exported_platform in platforms:
        omitted, platform_notes = locks.omitted_entries(lock, kind, exported_platform)
        left_out += [f"{entry.name} {entry.version}" for entry in omitted]
        notes += platform_notes
    return ExportedLock(text=text, left_out=tuple(left_out), notes=tuple(notes))


def _licenses(context: Context, name: str, lock: locks.LockFile) -> Licenses:
    """Licenses from the packages in the lock's own prefix; a lock itself holds none."""
    from provision.environment import prefix as prefixes

    prefix = prefixes.find(name, prefix_registry.prefix_path(context.folders, name))
    if prefix is None or prefix.lock_sha256 != lock.sha256:
        context.progress.info(
            "licenses are unknown: no prefix of this lock is installed (`provision env create "
            f"{name}` installs it)"
        )
        return {}
    return prefix_licenses(prefix.path)
