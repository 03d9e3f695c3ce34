"""Installing exactly the wheels of a lock, every one checked against its hash."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from provision.adapters.uv.file_conflicts import wheels_to_reinstall
from provision.adapters.uv.settings import IndexOptions, index_options
from provision.adapters.uv.uv_process import call, is_unanswered, uv_executable
from provision.core.errors import ProvisionError, Unreachable, Unsolvable
from provision.core.mirrors import NO_MIRRORS, Mirrors
from provision.core.tempdirs import temporary_directory
from provision.core.types import LockedPackage


def install_wheels(
    packages: Sequence[LockedPackage],
    interpreter: Path,
    mirrors: Mirrors = NO_MIRRORS,
    *,
    warn: Callable[[str], None],
) -> None:
    """Install these wheels (see `_install`); of files that several bring, the one of the last wheel by name stays, on every machine."""
    build = next(
        (package.version.partition("+")[2] for package in packages if package.name == "torch"), None
    )
    where = index_options(build, mirrors)
    _install(packages, interpreter, mirrors, where, warn=warn)
    for site in interpreter.parent.parent.glob("lib/python3*/site-packages"):
        for package in wheels_to_reinstall(packages, site):
            _install([package], interpreter, mirrors, where, "--reinstall", warn=warn)


def _install(
    packages: Sequence[LockedPackage],
    interpreter: Path,
    mirrors: Mirrors,
    where: IndexOptions,
    *options: str,
    warn: Callable[[str], None],
) -> None:
    """Install exactly these wheels, every one checked against its hash, into the environment of `interpreter`. On a terminal
    uv's own progress bars are shown. Where no index answers, uv's cache may hold them all; then that is said through `warn`.

    Packages of an index are asked for by name, version and hash, so that uv finds what it has unpacked before, and a mirror can
    serve them; what uv 0.13 installs from a pylock file it fetches and unpacks each time (tried).
    """
    with temporary_directory("uv") as folder:
        wanted = folder / "requirements.txt"
        wanted.write_text(hashed_requirements(packages, mirrors))
        command: list[str | Path] = [
            uv_executable(),
            "pip",
            "install",
            "--python",
            interpreter,
            "--no-deps",
            "--require-hashes",
        ]
        command += ["--no-python-downloads", *options, *where.remote, "-r", wanted]
        try:
            call(command, show=True, alone=where.alone)
        except Unreachable as error:
            if not (is_unanswered(error) and _is_installed_from_cache(command, where.alone)):
                raise
            warn(f"{error.message} All wheels were in uv's cache, and were installed from there.")
        except Unsolvable as error:
            raise Unreachable(
                f"A locked package is gone from the index: {error.message.partition(': ')[2]}",
                advice="Run `provision lock --relock` to choose versions that are still served; nothing was changed.",
                details=error.details,
            ) from error


def _is_installed_from_cache(command: Sequence[str | Path], alone: bool) -> bool:
    """The same without asking anybody; whether that was enough."""
    try:
        call([*command, "--offline"], show=True, alone=alone)
    except ProvisionError:
        return False
    return True


def _by_hash(package: LockedPackage, mirrors: Mirrors) -> str:
    """By name from an index; by address what no index has: a folder of ours has an index of all that it holds."""
    url = mirrors.actual_url(package.url, package.sha256)
    indexed = mirrors.is_closed and url != package.url
    by_address = (package.direct or package.url.startswith("file:")) and not indexed
    return f"{package.name}{' @ ' + url if by_address else '==' + package.version} --hash=sha256:{package.sha256}"


def hashed_requirements(packages: Sequence[LockedPackage], mirrors: Mirrors = NO_MIRRORS) -> str:
    """What uv is asked to install: requirements with hashes."""
    return "".join(f"{_by_hash(package, mirrors)}\n" for package in packages)


def unpack_wheel(
    requirement: str, target: Path, *, python: str, mirrors: Mirrors = NO_MIRRORS
) -> str:
    """Unpack one package without its dependencies into a folder, and return its version."""
    command: list[str | Path] = [
        uv_executable(),
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        target,
        "--python-version",
        python,
    ]
    where = index_options(mirrors=mirrors)
    call(
        [*command, "--no-python-downloads", "--python", sys.executable, *where.remote, requirement],
        alone=where.alone,
    )
    info = next(target.glob("*.dist-info"))
    return info.name.removesuffix(".dist-info").rpartition("-")[2]
