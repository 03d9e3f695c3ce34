"""`provision lock verify` and `export`.

A lock is named by its environment or by its file, whoever made it.
"""

from __future__ import annotations

from collections.abc import Sequence

from provision import lockfile as locks
from provision.adapters import http, uv
from provision.core.dataclass import frozen
from provision.core.errors import Unreachable
from provision.core.requirement_urls import is_source
from provision.workflow.batch import environment_names
from provision.workflow.context import Context
from provision.workflow.lock import lock_file


def verify_locks(
    context: Context, targets: Sequence[str], *, offline: bool
) -> list[locks.VerifyReport]:
    """What is wrong with each lock. Without targets: every lock of the envs folder."""
    targets = targets or environment_names(context, locks.FILE, "provision lock NAME")
    files = [locks.read_file(lock_file(context, target)) for target in targets]
    metadata = None if offline else _wheel_metadata(context, files)
    return [locks.verify_lock(file, metadata, target) for target, file in zip(targets, files)]


def _wheel_metadata(
    context: Context, files: Sequence[locks.LockFile]
) -> dict[str, uv.WheelMetadata | str]:
    """What the wheels of locks say about themselves, by URL, or why it cannot be read. Each is asked
    for once."""
    # A git repository or an editable folder is no file that a server has.
    entries = [entry for file in files for entry in file.entries if not is_source(entry.url)]
    urls = sorted({entry.url for entry in entries if entry.manager == "pip"})
    with (
        http.HttpClient(uv.pip_settings()) as web,
        context.progress.meter("reading requirements of wheels", len(urls)) as meter,
    ):

        def read(url: str) -> uv.WheelMetadata | str:
            if not url.partition("#")[0].endswith(".whl"):
                return "it is not a wheel, and its requirements are known only once it is built"
            try:
                return uv.fetch_metadata(web, context.mirrors.actual_url(url))
            except Unreachable as error:
                return error.message.rpartition(": ")[2].rstrip(".")

        metadata = {}
        for url, result in http.in_parallel(read, urls):
            metadata[url] = result
            meter.advance(1)
        return metadata


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
    left_out = []
    notes = []
    for exported_platform in platforms:
        omitted, platform_notes = locks.omitted_entries(lock, kind, exported_platform)
        left_out += [f"{entry.name} {entry.version}" for entry in omitted]
        notes += platform_notes
    return ExportedLock(text=text, left_out=tuple(left_out), notes=tuple(notes))
