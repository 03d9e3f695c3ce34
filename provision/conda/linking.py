"""Fetching locked packages and linking them into a folder, every one checked against its hash; a folder as a channel."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urlsplit

from provision.conda.calls import last_cause, run
from provision.errors import IntegrityError, NoSpace, ToolFailed, Unreachable
from provision.model import PLATFORM, LockedPackage, Progress

if TYPE_CHECKING:
    import rattler
    from rattler.install import InstallerReporter


def link(packages: Sequence[LockedPackage], target: Path, *, final: Path, cache: Path, progress: Progress) -> None:
    """Fetch packages into `cache` and link them into `target`; paths inside the files name `final`.

    Raises IntegrityError when a file is not what the lock says, Unreachable when it cannot be had, NoSpace on a full disk.
    """
    import rattler

    for package in packages:
        _verify_local(package)
    cache.mkdir(parents=True, exist_ok=True)
    with progress.meter("linking conda packages", len(packages)) as meter:
        try:
            run(
                rattler.install(
                    [_record(package) for package in packages],
                    target,
                    cache_dir=cache,
                    platform=rattler.Subdir(packages[0].platform if packages else PLATFORM),
                    execute_link_scripts=False,
                    show_progress=False,
                    reporter=_reporter(meter.advance),
                    alternative_target_prefix=final,
                )
            )
        except Exception as error:
            raise _install_error(error, target) from error


def _install_error(error: Exception, target: Path) -> Exception:
    text = str(error)
    low = text.lower()
    if "no space left" in low or "os error 28" in low or "quota" in low:
        return NoSpace(f"The disk of {target} is full.", advice="Free space there and run the same command again.", details=text)
    if "hash mismatch" in low or "sha256" in low:
        return IntegrityError(f"A conda package is not what the lock says: {last_cause(error)}.", details=text)
    if "error sending request" in low or "404" in low or "not found" in low or "client error" in low:
        return Unreachable(f"A locked conda package cannot be had: {text.splitlines()[0]}.", details=text)
    return ToolFailed(["rattler", "install"], 1, text)


def _reporter(advance: Callable[[int], None]) -> InstallerReporter:
    """Counts linked packages. rattler calls it from its own threads, and only the methods that are there."""

    class Linked:
        def on_link_complete(self, index: int) -> None:
            advance(1)

    return cast("InstallerReporter", Linked())


# Files whose hash this run has checked: prefix and image are linked from the same ones.
_verified: set[tuple[str, Path, int, int]] = set()


def _verify_local(package: LockedPackage) -> None:
    """rattler 0.28 checks the hash of what it downloads but not of `file://` packages (tried: any hash is accepted)."""
    parts = urlsplit(package.url)
    if parts.scheme != "file":
        return
    path = Path(unquote(parts.path))
    if path.exists() and (key := (package.sha256, path, path.stat().st_mtime_ns, path.stat().st_size)) in _verified:
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


def sha256_of(path: Path) -> str:
    """The sha256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


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


def index(folder: Path) -> None:
    """Write repodata for a folder of packages so that it can be used as a channel."""
    from rattler.index import index_fs

    (folder / "noarch").mkdir(parents=True, exist_ok=True)
    run(index_fs(folder))
