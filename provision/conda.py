"""The one door to py-rattler: what channels serve, solving, fetching and linking packages, indexing a folder as a channel.

Callers see plain values (`LockedPackage`, paths); rattler's types stay in here. Everything that rattler does in Rust threads is
awaited to its end, so a returned function has nothing in flight.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

from provision.errors import IntegrityError, InvalidSpec, NoSpace, ToolFailed, Unreachable, Unsolvable
from provision.model import PLATFORM, LockedPackage, Progress

if TYPE_CHECKING:
    import rattler
    from rattler.install import InstallerReporter

T = TypeVar("T")

# Long enough for a slow mirror's first byte, short enough that a firewall that drops packets does not look like a hang.
ANSWER_TIMEOUT_S = 20.0


def _await(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def channel(name: str, alias: str | None = None) -> rattler.Channel:
    """A channel by name or URL; names are looked up under `alias` (rattler's own default when None)."""
    import rattler

    try:
        config = rattler.ChannelConfig(channel_alias=alias.rstrip("/") + "/") if alias else None
        return rattler.Channel(name, config)
    except Exception as error:
        raise InvalidSpec(f"`{name}` is not a channel: {error}.") from error


def check_specs(specs: Iterable[str]) -> list[str]:
    """The mistakes in conda requirements, one sentence each."""
    import rattler

    mistakes = []
    for spec in specs:
        try:
            rattler.MatchSpec(spec)
        except Exception as error:
            mistakes.append(f"`{spec}` is not a conda requirement: {str(error).splitlines()[0]}.")
    return mistakes


def unanswered(channels: Sequence[str], alias: str | None = None) -> dict[str, str]:
    """Channels that did not serve repodata for our platform, each with the reason. Asks all, within ANSWER_TIMEOUT_S each."""
    return _await(_ask(channels, alias))


async def _ask(channels: Sequence[str], alias: str | None) -> dict[str, str]:
    import rattler
    from rattler.exceptions import GatewayError

    async def ask(name: str) -> tuple[str, str | None]:
        query = rattler.Gateway().query([channel(name, alias)], [PLATFORM, "noarch"], ["python"], recursive=False)
        try:
            await asyncio.wait_for(query, ANSWER_TIMEOUT_S)
        except asyncio.TimeoutError:
            return name, f"no answer within {ANSWER_TIMEOUT_S:.0f} s"
        except GatewayError as error:
            return name, _last_cause(error)
        return name, None

    answers = await asyncio.gather(*(ask(name) for name in channels))
    return {name: reason for name, reason in answers if reason is not None}


def _last_cause(error: BaseException) -> str:
    """rattler prints a chain of causes, the innermost last: that is the one a person can act on."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].removeprefix("Caused by: ") if lines else type(error).__name__


def solve(
    specs: Sequence[str],
    channels: Sequence[str],
    virtual_packages: Sequence[tuple[str, str]],
    *,
    bounds: Sequence[str] = (),
    alias: str | None = None,
) -> tuple[LockedPackage, ...]:
    """Solve requirements against channels, in order of priority. Raises Unsolvable or Unreachable; never returns a part.

    bounds: requirements that hold for a package if it becomes part of the answer, but do not ask for it.
    """
    import rattler
    from rattler.exceptions import GatewayError, SolverError
    from rattler.package.build_string import BuildString

    sources = [channel(name, alias) for name in channels]
    virtual = [
        rattler.GenericVirtualPackage(rattler.PackageName(name), rattler.Version(version), BuildString("0"))
        for name, version in virtual_packages
    ]
    try:
        records = _await(
            rattler.solve(
                sources,
                [rattler.MatchSpec(_qualified(spec, alias)) for spec in specs],
                platforms=[PLATFORM, "noarch"],
                virtual_packages=virtual,
                constraints=[rattler.MatchSpec(bound) for bound in bounds],
            )
        )
    except SolverError as error:
        raise Unsolvable(
            f"No set of packages in {', '.join(channels)} satisfies {', '.join(specs)}.",
            advice="Loosen a requirement, or name a channel that has the package with --channel; -v shows the solver's words.",
            details=str(error),
        ) from error
    except GatewayError as error:
        raise Unreachable(
            f"A channel among {', '.join(channels)} did not answer: {_last_cause(error)}.",
            advice="Check the network, or name a mirror with --channel-alias or --channel.",
            details=str(error),
        ) from error
    return tuple(sorted((_locked(record) for record in records), key=lambda package: package.name))


def _qualified(spec: str, alias: str | None) -> str:
    """`channel::package` means the channel under our alias; rattler would look it up under its own."""
    name, separator, rest = spec.partition("::")
    return f"{alias.rstrip('/')}/{name}::{rest}" if alias and separator and "://" not in name else spec


def _locked(record: rattler.RepoDataRecord) -> LockedPackage:
    if record.sha256 is None or record.md5 is None:
        raise IntegrityError(
            f"{record.url} has no {'sha256' if record.sha256 is None else 'md5'} in its channel's repodata, so it cannot be locked.",
            advice="Ask the channel's owner to index it again, or use another channel.",
        )
    return LockedPackage(
        manager="conda",
        name=record.name.normalized,
        version=str(record.version),
        url=record.url,
        sha256=record.sha256.hex(),
        md5=record.md5.hex(),
        build=str(record.build),
        depends=tuple(record.depends),
    )


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
            _await(
                rattler.install(
                    [_record(package) for package in packages],
                    target,
                    cache_dir=cache,
                    platform=rattler.Subdir(PLATFORM),
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
        return IntegrityError(f"A conda package is not what the lock says: {_last_cause(error)}.", details=text)
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
    _await(index_fs(folder))
