"""The verbs that look at locks: verify, diff, export. A lock is named by its environment or by its file, whoever made it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from packaging.utils import canonicalize_name

from provision import lockfile as locks
from provision.adapters import conda, http, uv
from provision.commands.plan import Context
from provision.core import prefix_registry
from provision.core.errors import InvalidSpec, Unreachable
from provision.core.mirrors import without_login
from provision.core.sbom.licenses import prefix_licenses
from provision.environment import prefix as prefixes
from provision.image import source_date_epoch
from provision.resolver import spec

T = TypeVar("T")


def lock_file(context: Context, target: str) -> Path:
    """The lock that a target names: a file if there is one of that name, else an environment's."""
    path = Path(target)
    if path.is_file() or "/" in target or target.endswith((".yml", ".yaml")):
        if not path.is_file():
            raise InvalidSpec(
                f"There is no file {path}.", advice="Name a conda-lock.yml, or an environment."
            )
        return path
    path = context.where.envs / spec.check_name(target) / locks.FILE
    if not path.is_file():
        raise InvalidSpec(
            f"There is no {path}.",
            advice=f"`provision lock {target}` makes it; --envs names another folder of environments.",
        )
    return path


def every_lock(context: Context) -> list[str]:
    """The environments of the envs folder that have a lock. Raises InvalidSpec where there is none."""
    found = sorted(path.parent.name for path in context.where.envs.glob(f"*/{locks.FILE}"))
    if not found:
        raise InvalidSpec(
            f"There is no */{locks.FILE} in {context.where.envs}.",
            advice="Name a lock file, or make one: provision lock NAME.",
        )
    return found


def verify_locks(
    context: Context, targets: Sequence[str], *, offline: bool
) -> list[locks.VerifyReport]:
    """`provision lock verify`: what is wrong with each lock; all of the envs folder if none is named."""
    found = [
        (target, locks.read_file(lock_file(context, target)))
        for target in targets or every_lock(context)
    ]
    asked = locks.RemoteAnswers() if offline else _asked(context, [lock for _, lock in found])
    return [locks.verify_lock(lock, asked, target) for target, lock in found]


def _asked(context: Context, found: Sequence[locks.LockFile]) -> locks.RemoteAnswers:
    """What others say of all the files, each asked once: servers and channels, where their mirrors are."""
    urls = {
        entry.url
        for lock in found
        for entry in lock.entries
        if entry.manager == "conda" and entry.url.count("/") > 3
    }
    records, silent = conda.published_rows(urls, context.mirrors)
    for channel, reason in silent.items():
        context.progress.say(f"{without_login(channel)} did not tell its records: {reason}")
    constrains = {url: tuple(record.get("constrains", ())) for url, record in records.items()}
    with http.HttpClient(uv.pip_settings()) as web:
        served = _served(context, found, web)
        return locks.RemoteAnswers(
            served=served, constrains=constrains, metadata=_metadata(context, found, served, web)
        )


def _served(
    context: Context, found: Sequence[locks.LockFile], web: http.HttpClient
) -> dict[str, http.Availability]:
    """Whether each file of the locks is still served, each asked once, where its mirror has it."""
    hashes = _hashes(found)

    def ask(url: str) -> http.Availability:
        try:
            return web.availability(context.mirrors.actual_url(url, hashes[url]), hashes[url])
        except Unreachable as error:
            return http.Availability(state="gone", detail=error.message.rstrip("."))

    return _of_each(context, "asking for files", sorted(hashes), ask)


def _metadata(
    context: Context,
    found: Sequence[locks.LockFile],
    served: Mapping[str, http.Availability],
    web: http.HttpClient,
) -> dict[str, uv.WheelMetadata | str]:
    """What each wheel says of itself, or why that could not be had."""
    hashes = _hashes(found)

    def ask(url: str) -> uv.WheelMetadata | str:
        if served[url].state != "available":
            return "its file could not be had"
        if not url.partition("#")[0].endswith(".whl"):
            return "it is no wheel, and says what it needs only when it is built"
        try:
            return uv.fetch_metadata(web, context.mirrors.actual_url(url, hashes[url]))
        except Unreachable as error:
            return error.message.rpartition(": ")[2].rstrip(".")

    urls = sorted({entry.url for lock in found for entry in lock.entries if entry.manager == "pip"})
    return _of_each(context, "reading what wheels need", urls, ask)


def _hashes(found: Sequence[locks.LockFile]) -> dict[str, str]:
    return {entry.url: entry.sha256 for lock in found for entry in lock.entries}


def _of_each(
    context: Context, title: str, urls: Sequence[str], ask: Callable[[str], T]
) -> dict[str, T]:
    """Every address's answer, several asked at a time."""
    answers = {}
    with context.progress.meter(title, len(urls)) as meter:
        for url, answer in http.in_parallel(ask, urls):
            answers[url] = answer
            meter.advance(1)
    return answers


def diff_locks(context: Context, before: str, after: str) -> locks.LockDiff:
    """`provision lock diff`: what changed from one lock to another."""
    old, new = (locks.read_file(lock_file(context, target)) for target in (before, after))
    return locks.diff_locks(old, new, (before, after))


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A lock in another format, and what that format's readers do not get."""

    text: str
    left_out: tuple[str, ...]  # name and version
    notes: tuple[str, ...]


def export_lock(
    context: Context, target: str, *, kind: locks.ExportFormat, platform: str | None, licenses: bool
) -> Exported:
    """`provision lock export`: the lock's text in another format."""
    path = lock_file(context, target)
    lock = locks.read_file(path)
    name = path.parent.name if path.name == locks.FILE and path.parent.name else path.stem
    said = _licenses(context, name, lock) if licenses and kind in ("cyclonedx", "spdx") else {}
    epoch = source_date_epoch(os.environ) if os.environ.get("SOURCE_DATE_EPOCH") else None
    chosen = locks.export_platform(lock, platform)
    text = locks.export_lock(lock, name, kind, chosen, licenses=said, epoch=epoch)
    missing, notes = locks.omitted_entries(lock, kind, chosen)
    return Exported(
        text=text,
        left_out=tuple(f"{entry.name} {entry.version}" for entry in missing),
        notes=tuple(notes),
    )


def _licenses(context: Context, name: str, lock: locks.LockFile) -> Mapping[str, str]:
    """By address, as the packages in the lock's own prefix say; a lock holds no licenses, so without that prefix none is known."""
    prefix = prefixes.find(name, prefix_registry.prefix_path(context.where, name))
    if prefix is None or prefix.lock_sha256 != lock.sha256:
        context.progress.say(
            f"licenses are not known: there is no prefix of this very lock (`provision env create {name}` makes it)"
        )
        return {}
    said = prefix_licenses(prefix.path)
    keys = {entry.url: (entry.manager, canonicalize_name(entry.name)) for entry in lock.entries}
    return {url: said[key] for url, key in keys.items() if key in said}
