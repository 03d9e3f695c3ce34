"""`provision channel mirror`: every file of some locks, in a folder for use without network.

mirrors.txt                 read by `--mirror DIR`: the addresses below which it has files
files/HOST/PATH             the files, as their addresses say; conda channels with repodata.json
simple/NAME/index.html      a package index of the wheels (PEP 503)
"""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from packaging.utils import canonicalize_name

from provision import lockfile as locks
from provision.adapters import conda, http, uv
from provision.core.atomic import atomic_write
from provision.core.credentials import without_login
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError, ProvisionError, Unreachable
from provision.core.file_locks import environment_lock
from provision.core.mirrors import FILES, MANIFEST, SIMPLE
from provision.core.types import LockedPackage
from provision.workflow.context import Context
from provision.workflow.lock import lock_file

LOCAL = "local"  # in place of a host, of files on this machine's disk


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


def mirror(
    context: Context,
    targets: Sequence[str],
    folder: Path,
    *,
    dry_run: bool = False,
) -> MirrorResult:
    """Fetch missing files, then write repodata, index and addresses for all that are present.

    A file gets its name only when its hash is right. Raises for the first file that could not be
    fetched, after all others were.
    """
    locked = [locks.read_file(lock_file(context, target)).entries for target in targets]
    packages = unique_files(chain.from_iterable(locked))
    name = f"+mirror-{hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]}"
    work = environment_lock(context.folders, name, context.progress)
    with nullcontext() if dry_run else work:
        missing = _missing(folder, packages)
        if not dry_run:
            failures = _fetch(context, folder, packages, missing)
            present = {path: packages[path] for path in packages if path not in failures}
            write_descriptions(folder, present)
            if failures:
                raise _first_failure(failures, len(packages))
    paths = [folder / path for path in packages]
    return MirrorResult(
        folder=folder,
        files=len(paths),
        bytes=sum(path.stat().st_size for path in paths if path.is_file()),
        fetched=tuple(missing),
        reused=len(paths) - len(missing),
        dry_run=dry_run,
    )


def unique_files(packages: Iterable[LockedPackage]) -> dict[str, LockedPackage]:
    """The packages by the paths of their files, in order.

    Raises IntegrityError if two locks have different contents for one address.
    """
    by_path: dict[str, LockedPackage] = {}
    for package in packages:
        first = by_path.setdefault(file_path(package), package)
        if first.sha256 != package.sha256:
            raise IntegrityError(
                f"The locks disagree about {package.url}: its sha256 is "
                f"{first.sha256[:16]}… in one and {package.sha256[:16]}… in another.",
                advice="Its channel replaced the file: relock the older one, or mirror them into "
                "two folders.",
            )
    return {path: by_path[path] for path in sorted(by_path)}


def file_path(package: LockedPackage) -> str:
    """The path of a package's file in the folder.

    Raises IntegrityError for one without a well-formed hash, and for a path that leads elsewhere.
    """
    parts = urlsplit(without_login(package.url))
    path = parts.path.removeprefix("/").split("/")
    names = [parts.netloc or LOCAL, *map(unquote, path)]
    is_safe = all(name.strip(".") and "/" not in name for name in names)
    if not is_safe or not re.fullmatch(r"[0-9a-f]{64}", package.sha256):
        raise IntegrityError(
            f"{package.name} cannot be mirrored: the lock has no well-formed sha256 or no file name "
            f"for it ({package.url}).",
            advice="`provision lock verify` lists what is wrong with the lock.",
        )
    return "/".join([FILES, *names])


def _missing(folder: Path, packages: Mapping[str, LockedPackage]) -> list[str]:
    """The files that are absent, or have another content."""

    def is_present(item: tuple[str, LockedPackage]) -> bool:
        path = folder / item[0]
        return path.is_file() and http.sha256_of(path) == item[1].sha256

    items = list(packages.items())
    present = {path for (path, _), is_there in http.in_parallel(is_present, items) if is_there}
    return [path for path in packages if path not in present]


def _fetch(
    context: Context, folder: Path, packages: Mapping[str, LockedPackage], missing: Sequence[str]
) -> dict[str, ProvisionError]:
    """Download files; returns why those failed that could not be fetched, by their paths."""
    if not missing:
        return {}
    context.progress.info(f"fetching {len(missing)} files into {folder}")
    failures = {}
    with (
        http.HttpClient(uv.pip_settings()) as web,
        context.progress.meter("fetching", len(missing)) as meter,
    ):

        def fetch(path: str) -> ProvisionError | None:
            package = packages[path]
            url = context.mirrors.actual_url(package.url)
            try:
                web.download(url, package.sha256, folder / path)
            except (Unreachable, IntegrityError) as error:
                return error
            return None

        for path, failure in http.in_parallel(fetch, missing):
            meter.advance(1)
            if failure is not None:
                failures[path] = failure
    return failures


def write_descriptions(folder: Path, packages: Mapping[str, LockedPackage]) -> None:
    """Write repodata, index and addresses for files that are in the folder. What earlier runs wrote
    of others stays."""
    channels = set()
    addresses = set()
    links: dict[str, set[str]] = {}
    for path, package in packages.items():
        addresses.add(_address(without_login(package.url), quote(path)))
        if package.manager == "conda":
            channels.add(path.rsplit("/", 2)[0])
            continue
        target = html.escape(f"../../{quote(path)}#sha256={package.sha256}")
        link = f'<a href="{target}">{html.escape(path.rpartition("/")[2])}</a><br>'
        links.setdefault(canonicalize_name(package.name), set()).add(link)
    for channel in sorted(channels):
        conda.index_channel(folder / channel)
    for name, lines in links.items():
        _add_lines(folder / SIMPLE / name / "index.html", lines)
    _add_lines(folder / MANIFEST, addresses)


def _address(url: str, path: str) -> str:
    """The line of a file: all of its host are where it is; of this machine's disk, all of its folder."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return f"{url.rpartition('/')[0]}/={path.rpartition('/')[0]}/"
    return f"{parts.scheme}://{parts.netloc}/={'/'.join(path.split('/')[:2])}/"


def _add_lines(path: Path, lines: set[str]) -> None:
    earlier = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    atomic_write(path, "".join(f"{line}\n" for line in sorted({*earlier, *lines})))


def _first_failure(failures: Mapping[str, ProvisionError], total: int) -> ProvisionError:
    """The first error, which decides the exit code, with the number of all."""
    _, error = min(failures.items())
    if len(failures) > 1:
        error.details = "\n".join(failure.message for failure in failures.values())
        error.message = (
            f"{len(failures)} of {total} files could not be fetched; the first: {error.message}"
        )
    error.advice = (
        f"{error.advice} What was fetched stays: run the same command again to continue."
    ).strip()
    return error
