"""Fetching locked packages and linking them into a folder, every one checked against its hash; a folder as a channel."""

from __future__ import annotations

import dataclasses
import json
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from provision.adapters.conda.calls import again, client, last_cause, passing, run, unanswered_by
from provision.adapters.conda.path_guard import Guard
from provision.adapters.conda.stall_watch import Stalled, Watched, watched
from provision.adapters.http import TIMEOUT_VARIABLE, sha256_of
from provision.core.errors import IntegrityError, NoSpace, ToolFailed, Unreachable
from provision.core.mirrors import NO_MIRRORS, Mirrors, path_from_url, without_login
from provision.core.types import PLATFORM, LockedPackage, Progress

if TYPE_CHECKING:
    import rattler
    from rattler.install import InstallerReporter


def install_packages(
    packages: Sequence[LockedPackage],
    target: Path,
    *,
    final: Path,
    cache: Path,
    progress: Progress,
    mirrors: Mirrors = NO_MIRRORS,
) -> None:
    """Fetch packages into `cache` and link them into `target`, an empty folder or none; paths inside the files name `final`. What a
    mirror served is recorded under its own address.

    A package in the cache whose files are not what it says is fetched again.

    Raises IntegrityError when a file is not what the lock says or would be written elsewhere, Unreachable when it cannot be had, NoSpace
    on a full disk.
    """
    fetched = [
        dataclasses.replace(package, url=mirrors.actual_url(package.url)) for package in packages
    ]
    for package in fetched:
        _verify_local(package)
    cache.mkdir(parents=True, exist_ok=True)
    guard = Guard(cache, {package.name: package.filename for package in packages}, final)
    with progress.meter("linking conda packages", len(packages)) as meter:
        try:
            _link(fetched, target, final, cache, meter.advance, guard)
        except Exception as error:
            raise _escape_error(guard) or _install_error(error, target) from error
    for ours, theirs in zip(packages, fetched):
        if ours.url != theirs.url:
            _name_own_address(target, ours)
    _let_others_read(target)


def _let_others_read(target: Path) -> None:
    """rattler makes its records for their owner alone; whoever may read the prefix shall see what is in it (its other files have the
    permissions that the umask leaves)."""
    folder = target / "conda-meta"
    usual = (
        stat.S_IMODE((folder / "history").stat().st_mode)
        if (folder / "history").exists()
        else 0o644
    )
    for record in folder.glob("*.json"):
        record.chmod(usual)


def _escape_error(guard: Guard) -> IntegrityError | None:
    if not guard.refused:
        return None
    file, wrong = sorted(guard.refused.items())[0]
    return IntegrityError(
        f"The conda package {file} {wrong}; it was not installed.",
        advice="No sound package does so: find out where it is from before you use anything else from there.",
    )


def _link(
    packages: Sequence[LockedPackage],
    target: Path,
    final: Path,
    cache: Path,
    advance: Callable[[int], None],
    guard: Guard,
) -> None:
    """One transaction, and again where it failed for what may pass: packages that have arrived are in the cache by then."""
    import rattler
    from rattler.package_cache import PackageCache
    from rattler.package_cache.package_cache import ValidationMode

    linked = 0

    def more(count: int) -> None:
        nonlocal linked
        if count > linked:
            linked = count
            advance(1)

    def transaction() -> None:
        if target.exists():
            shutil.rmtree(target)
        watch = Watched(more, guard.look)
        work = rattler.install(
            [_record(package) for package in packages],
            target,
            cache_dir=cache,
            package_cache=PackageCache.new_layered([cache], validation_mode=ValidationMode.full()),
            platform=rattler.Subdir(packages[0].platform if packages else PLATFORM),
            execute_link_scripts=False,
            show_progress=False,
            client=client(whole=False),
            reporter=cast("InstallerReporter", watch),
            alternative_target_prefix=final,
        )
        run(watched(work, watch))

    again(transaction, Exception, lambda error: isinstance(error, Stalled) or passing(error))


def _install_error(error: Exception, target: Path) -> Exception:
    text = without_login(str(error))
    low = text.lower()
    if "no space left" in low or "os error 28" in low or "quota" in low:
        return NoSpace(
            f"The disk of {target} is full.",
            advice="Free space there and run the same command again.",
            details=text,
        )
    said = (
        f"{text.splitlines()[0].removeprefix('failed to fetch ')} ({last_cause(error)})"
        if text
        else type(error).__name__
    )
    if "hash mismatch" in low or "sha256" in low:
        return IntegrityError(f"A conda package is not what the lock says: {said}.", details=text)
    if any(words in low for words in NO_PACKAGE):
        return IntegrityError(
            f"What came is not the conda package that the lock names, nor any: {said}.",
            advice="A mirror may be damaged, or a login page answers in its place; nothing was changed.",
            details=text,
        )
    if isinstance(error, Stalled):
        return Unreachable(
            f"A locked conda package cannot be had: {text}.",
            advice=f"{TIMEOUT_VARIABLE} sets the seconds.",
            details=text,
        )
    if unanswered_by(error):
        return Unreachable(f"A locked conda package cannot be had: {said}.", details=text)
    return ToolFailed(["rattler", "install"], 1, text)


# Of zip, zstandard and bzip2, which read a package while it arrives, before its hash is known.
NO_PACKAGE = (
    "invalid zip archive",
    "unknown frame descriptor",
    "bzip2",
    "zstd",
    "invalid gzip",
    "unexpected end of file",
)


def _name_own_address(target: Path, package: LockedPackage) -> None:
    """rattler records the address from which it fetched; the same lock shall give the same prefix behind any mirror."""
    record = (
        target
        / "conda-meta"
        / f"{package.filename.removesuffix('.conda').removesuffix('.tar.bz2')}.json"
    )
    content = json.loads(record.read_text(encoding="utf-8"))
    content["url"], content["channel"] = package.url, package.url.rsplit("/", 2)[0]
    record.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")


# Files whose hash this run has checked: prefix and image are linked from the same ones.
_verified: set[tuple[str, Path, int, int]] = set()


def _verify_local(package: LockedPackage) -> None:
    """rattler 0.28 checks the hash of what it downloads but not of `file://` packages (tried: any hash is accepted)."""
    if not package.url.startswith("file:"):
        return
    path = path_from_url(package.url)
    if (
        path.exists()
        and (key := (package.sha256, path, path.stat().st_mtime_ns, path.stat().st_size))
        in _verified
    ):
        return
    if not path.exists():
        raise Unreachable(
            f"The locked package {package.filename} is gone from {path.parent}.",
            advice="Run `provision channel bootstrap`, then `provision lock --relock`.",
        )
    if sha256_of(path) != package.sha256:
        raise IntegrityError(
            f"{path} is not the file that the lock names: its sha256 differs from {package.name}'s in conda-lock.yml.",
            advice="Restore the lock or run `provision lock --relock`.",
        )
    _verified.add(key)


def _record(package: LockedPackage) -> rattler.RepoDataRecord:
    import rattler
    from rattler.package.build_string import BuildString

    parent, _, filename = package.url.rpartition("/")
    channel_url, _, subdir = parent.rpartition("/")
    record = rattler.PackageRecord(
        package.name,
        package.version,
        BuildString(package.build),
        _build_number(package.build),
        subdir,
        noarch=None,
        depends=list(package.depends),
        sha256=bytes.fromhex(package.sha256),
        md5=bytes.fromhex(package.md5) if package.md5 else None,
    )
    return rattler.RepoDataRecord(record, filename, package.url, channel_url)


def _build_number(build: str) -> int:
    """By convention the digits after the last underscore of a build string; a lock (v1) does not hold it otherwise."""
    tail = build.rpartition("_")[2]
    return int(tail) if tail.isdigit() else 0


def index_channel(folder: Path) -> None:
    """Write repodata for a folder of packages so that it can be used as a channel."""
    from rattler.index import index_fs

    (folder / "noarch").mkdir(parents=True, exist_ok=True)
    run(index_fs(folder))
