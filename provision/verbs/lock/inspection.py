"""`provision lock verify`, `diff` and `export`.

A lock is named by its environment or by its file, whoever made it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from provision import lockfile as locks
from provision.adapters import http, uv
from provision.core.dataclass import frozen
from provision.core.errors import Unreachable
from provision.core.requirement_urls import is_source
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
    """What servers, or their mirrors, say about all files of the locks.

    Each file is asked for once.
    """
    # A git repository or an editable folder is no file that a server has.
    entries = [entry for file in files for entry in file.entries if not is_source(entry.url)]
    hashes = {entry.url: entry.sha256 for entry in entries}
    wheel_urls = {entry.url for entry in entries if entry.manager == "pip"}
    with http.HttpClient(uv.pip_settings()) as web:

        def availability(url: str) -> http.Availability:
            return web.availability(context.mirrors.actual_url(url), hashes[url])

        def metadata(url: str) -> uv.WheelMetadata | str:
            """What a wheel says about itself, or why it cannot be read."""
            if served[url].state != "available":
                return "its file is not available"
            if not url.partition("#")[0].endswith(".whl"):
                return "it is not a wheel, and its requirements are known only once it is built"
            try:
                return uv.fetch_metadata(web, context.mirrors.actual_url(url))
            except Unreachable as error:
                return error.message.rpartition(": ")[2].rstrip(".")

        served = _in_parallel(context, "checking files", sorted(hashes), availability)
        return locks.RemoteFacts(
            served=served,
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


@frozen
class ExportedLock:
    """A lock in another format, and what that format cannot hold."""

    text: str
    left_out: tuple[str, ...]  # name and version
    notes: tuple[str, ...]


def export_lock(
    context: Context, target: str, *, kind: locks.ExportFormat, platform: str | None
) -> ExportedLock:
    """The lock in another format."""
    path = lock_file(context, target)
    lock = locks.read_file(path)
    name = path.parent.name if path.name == locks.FILE else ""
    name = name or path.stem
    platforms = locks.export_platforms(lock, kind, platform)
    text = locks.export_lock(lock, name, kind, *platforms)
    left_out: list[str] = []
    notes: list[str] = []
    for exported_platform in platforms:
        omitted, platform_notes = locks.omitted_entries(lock, kind, exported_platform)
        left_out += [f"{entry.name} {entry.version}" for entry in omitted]
        notes += platform_notes
    return ExportedLock(text=text, left_out=tuple(left_out), notes=tuple(notes))
