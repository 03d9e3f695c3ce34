"""Installs locked packages into a prefix, every one checked against its hash; and makes a folder of
packages a channel."""

from __future__ import annotations

import json
import posixpath
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from provision.adapters.conda.calls import (
    DownloadMonitor,
    Stalled,
    await_progress,
    innermost_cause,
    is_network_error,
    may_pass,
    new_client,
    run,
)
from provision.adapters.conda.logins import public_url
from provision.adapters.http import TIMEOUT_VARIABLE, retry, sha256_of
from provision.core.errors import IntegrityError, ToolFailed, Unreachable
from provision.core.json_text import parse_json
from provision.core.mirrors import NO_MIRRORS, Mirrors, path_from_url
from provision.core.package_names import archive_stem
from provision.core.paths import make_private_directory
from provision.core.platforms import PLATFORM
from provision.core.system_errors import tool_without_space
from provision.core.types import LockedPackage, Progress

if TYPE_CHECKING:
    import rattler
    from rattler.install import InstallerReporter

# Phrases of zip, zstandard and bzip2, which read a package while it arrives, before its hash is
# known.
NOT_A_PACKAGE = (
    "invalid zip archive",
    "unknown frame descriptor",
    "bzip2",
    "zstd",
    "invalid gzip",
    "unexpected end of file",
)


def install_packages(
    packages: Sequence[LockedPackage],
    target: Path,
    *,
    final: Path,
    cache: Path,
    progress: Progress,
    mirrors: Mirrors = NO_MIRRORS,
) -> None:
    """Download packages into `cache` and link them into `target`, which is empty or does not exist.

    Paths inside the files name `final`. What a mirror served is recorded under its canonical URL. A
    package in the cache whose files are not what it says is downloaded again.

    Raises IntegrityError if a file is not what the lock says or would be written elsewhere,
    Unreachable if it cannot be downloaded, NoSpace on a full disk.
    """
    downloads = [
        replace(package, url=public_url(mirrors.actual_url(package.url))) for package in packages
    ]
    for package in downloads:
        _verify_local_file(package)
    make_private_directory(cache.parent)
    cache.mkdir(exist_ok=True, mode=0o700)
    guard = PathGuard(cache, {package.name: package.filename for package in packages}, final)
    with progress.meter("linking conda packages", len(packages)) as meter:
        try:
            _install(downloads, target, final, cache, meter.advance, guard)
        except Exception as error:
            raise guard.refusal() or _install_error(error) from error
    for package, download in zip(packages, downloads):
        if package.url != download.url:
            _record_canonical_url(target, package)
    _share_records(target)


def _install(
    packages: Sequence[LockedPackage],
    target: Path,
    final: Path,
    cache: Path,
    advance: Callable[[int], None],
    guard: PathGuard,
) -> None:
    """One transaction, retried after errors that may pass: packages that have arrived are in the
    cache by then."""
    import rattler
    from rattler.package_cache import PackageCache
    from rattler.package_cache.package_cache import ValidationMode

    most_linked = 0

    def on_linked(count: int) -> None:
        """Advance only by what no earlier try had linked."""
        nonlocal most_linked
        if count > most_linked:
            most_linked = count
            advance(1)

    def transaction() -> None:
        if target.exists():
            shutil.rmtree(target)
        monitor = DownloadMonitor(on_linked, guard.check)
        work = rattler.install(
            [_record(package) for package in packages],
            target,
            cache_dir=cache,
            package_cache=PackageCache.new_layered([cache], validation_mode=ValidationMode.full()),
            platform=rattler.Subdir(packages[0].platform if packages else PLATFORM),
            execute_link_scripts=False,
            show_progress=False,
            client=new_client(has_deadline=False),
            reporter=cast("InstallerReporter", monitor),
            alternative_target_prefix=final,
        )
        run(await_progress(work, monitor))

    retry(transaction, Exception, lambda error: isinstance(error, Stalled) or may_pass(error))


def _install_error(error: Exception) -> Exception:
    """rattler's error as one of ours, by the texts of py-rattler 0.28; unrecognized ones become
    ToolFailed."""
    text = str(error)
    lowercase = text.lower()
    if no_space := tool_without_space(text):
        return no_space
    if isinstance(error, Stalled):
        return Unreachable(
            f"A locked conda package could not be downloaded: {text}.",
            advice=f"{TIMEOUT_VARIABLE} sets the seconds.",
            details=text,
        )
    summary = type(error).__name__
    if text:
        package = text.splitlines()[0].removeprefix("failed to fetch ")
        summary = f"{package} ({innermost_cause(error)})"
    if "hash mismatch" in lowercase or "sha256" in lowercase:
        return IntegrityError(
            f"A conda package is not what the lock says: {summary}.", details=text
        )
    if any(phrase in lowercase for phrase in NOT_A_PACKAGE):
        return IntegrityError(
            f"A download is not the conda package that the lock names, or any package: {summary}.",
            advice="A mirror may be damaged, or a login page may answer in its place; nothing was "
            "changed.",
            details=text,
        )
    if is_network_error(error):
        return Unreachable(
            f"A locked conda package could not be downloaded: {summary}.", details=text
        )
    return ToolFailed(["rattler", "install"], 1, text)


def _record_canonical_url(target: Path, package: LockedPackage) -> None:
    """rattler records the URL that it downloaded; the same lock shall give the same prefix behind
    any mirror."""
    record = target / "conda-meta" / f"{archive_stem(package.filename)}.json"
    content = json.loads(record.read_text(encoding="utf-8"))
    content["url"], content["channel"] = package.url, package.url.rsplit("/", 2)[0]
    record.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")


def _share_records(target: Path) -> None:
    """Let everyone who may read the prefix read its records, which rattler makes for their owner
    alone.

    The prefix's other files have the permissions that the umask leaves.
    """
    folder = target / "conda-meta"
    mode = 0o644
    if (folder / "history").exists():
        mode = stat.S_IMODE((folder / "history").stat().st_mode)
    for record in folder.glob("*.json"):
        record.chmod(mode)


# Files whose hash this run has checked: prefix and image are installed from the same ones.
_verified: set[tuple[str, Path, int, int]] = set()


def _verify_local_file(package: LockedPackage) -> None:
    """rattler 0.28 checks the hash of what it downloads but not of `file://` packages (tried: any
    hash is accepted)."""
    if not package.url.startswith("file:"):
        return
    path = path_from_url(package.url)
    if not path.exists():
        raise Unreachable(
            f"The locked package {package.filename} is gone from {path.parent}.",
            advice="Run `provision channel bootstrap`, then `provision lock --relock`.",
        )
    status = path.stat()
    key = (package.sha256, path, status.st_mtime_ns, status.st_size)
    if key in _verified:
        return
    if sha256_of(path) != package.sha256:
        raise IntegrityError(
            f"{path} is not the file that the lock names: its sha256 differs from "
            f"{package.name}'s in conda-lock.yml.",
            advice="Restore the lock or run `provision lock --relock`.",
        )
    _verified.add(key)


def _record(package: LockedPackage) -> rattler.RepoDataRecord:
    import rattler
    from rattler.package.build_string import BuildString

    folder, _, filename = package.url.rpartition("/")
    channel, _, subdir = folder.rpartition("/")
    # By convention the digits after the last underscore of a build string are the build number,
    # which a lock (v1) does not hold.
    number = package.build.rpartition("_")[2]
    record = rattler.PackageRecord(
        package.name,
        package.version,
        BuildString(package.build),
        int(number) if number.isdigit() else 0,
        subdir,
        noarch=None,
        depends=list(package.depends),
        sha256=bytes.fromhex(package.sha256),
        md5=bytes.fromhex(package.md5) if package.md5 else None,
    )
    return rattler.RepoDataRecord(record, filename, package.url, channel)


def index_channel(folder: Path) -> None:
    """Write repodata for a folder of packages, so that it can be used as a channel."""
    from rattler.index import index_fs

    (folder / "noarch").mkdir(parents=True, exist_ok=True)
    run(index_fs(folder))


class PathGuard:
    """Checks the packages of one transaction. refused: the problem, by the file name of the
    package."""

    def __init__(self, cache: Path, files: dict[str, str], final: Path) -> None:
        """files: file names by package name. final: where the environment will be."""
        self._cache, self._files, self._final = cache, files, final
        self.refused: dict[str, str] = {}

    def refusal(self) -> IntegrityError | None:
        if not self.refused:
            return None
        file, problem = min(self.refused.items())
        return IntegrityError(
            f"The conda package {file} {problem}; it was not installed.",
            advice="No legitimate package does this: find out where it comes from before you "
            "install anything else from there.",
        )

    def check(self, package: str) -> None:
        """Check a package before it is linked; rattler's threads call this.

        A refused package loses its info folder, which rattler reads next: so linking it fails. Our
        exceptions would not stop it.
        """
        file = self._files.get(package)
        if file is None:
            return
        unpacked = self._cache / archive_stem(file)
        problem = next(_problems(unpacked, self._final), None)
        if problem is not None:
            self.refused[file] = problem
            shutil.rmtree(unpacked / "info")


def _problems(unpacked: Path, final: Path) -> Iterator[str]:
    try:
        for name in _listed_paths(unpacked):
            path = unpacked / name
            if name.startswith("/") or ".." in name.split("/"):
                yield f"lists {name}, which is outside of every environment"
            elif not path.parent.resolve().is_relative_to(unpacked.resolve()):
                yield f"lists {name}, which is behind a link that leads out of the package"
            elif path.is_symlink() and _leads_to_outer_folder(str(path.readlink()), name, final):
                target = path.readlink()
                yield f"has {name}, a link to the folder {target} outside of the environment"
        # The names of scripts that linking makes: `name = module:function`.
        noarch = (_read_json(unpacked / "info" / "link.json") or {}).get("noarch") or {}
        for entry in noarch.get("entry_points") or ():
            command = str(entry).partition("=")[0].strip()
            if "/" in command:
                yield f"has a command called {command}"
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        yield f"has documents that cannot be read ({error})"


def _listed_paths(unpacked: Path) -> Iterator[str]:
    """From paths.json, or in old packages from a list of names."""
    document = _read_json(unpacked / "info" / "paths.json")
    names = unpacked / "info" / "files"
    if document is not None:
        for row in document["paths"]:
            yield str(row["_path"])
    elif names.is_file():
        yield from names.read_text(encoding="utf-8").splitlines()


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    document: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
    return document


def _leads_to_outer_folder(target: str, name: str, final: Path) -> bool:
    """A link to a file is only read; below a link to a folder, other packages' files would be
    written."""
    joined = posixpath.join(str(final), posixpath.dirname(name), target)
    resolved = Path(posixpath.normpath(joined))
    return not resolved.is_relative_to(final) and resolved.is_dir()
