"""Installing exactly the wheels of a lock, every one checked against its hash."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from provision.errors import Unreachable, Unsolvable
from provision.model import LockedPackage
from provision.wheels.command import call, uv
from provision.wheels.settings import indexes


def install(packages: Sequence[LockedPackage], interpreter: Path) -> None:
    """Install exactly these wheels, every one checked against its hash, into the environment of `interpreter`. On a terminal
    uv's own progress bars are shown.

    Packages of an index are asked for by name, version and hash, so that uv finds what it has unpacked before, and a mirror can
    serve them; what uv 0.13 installs from a pylock file it fetches and unpacks each time (tried).
    """
    builds = {package.version.partition("+")[2] for package in packages if package.name == "torch"}
    with tempfile.TemporaryDirectory(prefix="provision-") as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text(requirements(packages))
        command: list[str | Path] = [uv(), "pip", "install", "--python", interpreter, "--no-deps", "--require-hashes"]
        command += ["--no-python-downloads", *indexes(next(iter(builds), None)).remote, "-r", wanted]
        try:
            call(command, show=True)
        except Unsolvable as error:
            raise Unreachable(
                f"A locked package is gone from the index: {error.message.partition(': ')[2]}",
                advice="Run `provision lock --relock` to choose versions that are still served; nothing was changed.",
                details=error.details,
            ) from error


def _by_hash(package: LockedPackage) -> str:
    local = package.direct or package.url.startswith("file:")
    return f"{package.name}{' @ ' + package.url if local else '==' + package.version} --hash=sha256:{package.sha256}"


def requirements(packages: Sequence[LockedPackage]) -> str:
    """What uv is asked to install: requirements with hashes."""
    return "".join(f"{_by_hash(package)}\n" for package in packages)


def unpack(requirement: str, target: Path, *, python: str) -> str:
    """Unpack one package without its dependencies into a folder, and return its version."""
    command: list[str | Path] = [uv(), "pip", "install", "--quiet", "--no-deps", "--target", target, "--python-version", python]
    call([*command, "--python", sys.executable, *indexes().remote, requirement])
    info = next(target.glob("*.dist-info"))
    return info.name.removesuffix(".dist-info").rpartition("-")[2]
