"""Installs exactly the wheels of a lock, every one checked against its hash."""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from packaging.utils import canonicalize_name

from provision.adapters.installed_files import recorded_paths
from provision.adapters.uv.configuration import IndexSettings
from provision.adapters.uv.indexes import index_settings
from provision.adapters.uv.resolve_request import UV_GLIBC, python_platform
from provision.adapters.uv.uv_process import CACHE_VARIABLE, CHOOSE_ANOTHER, run_uv, uv_executable
from provision.core.errors import Unreachable, Unsolvable
from provision.core.mirrors import NO_MIRRORS, Mirrors, path_from_url
from provision.core.platforms import Platform
from provision.core.requirement_urls import EDITABLE
from provision.core.settings import xdg_folder
from provision.core.tempdirs import temporary_directory
from provision.core.types import LockedPackage
from provision_runtime.facts.digests import normal_path

STEPS = re.compile(r" *(Downloading|Downloaded|Building|Built) ")


def install_wheels(
    packages: Sequence[LockedPackage],
    interpreter: Path,
    mirrors: Mirrors = NO_MIRRORS,
    *,
    target: Path | None = None,
    platform: Platform | None = None,
    on_line: Callable[[str], None] | None = None,
) -> None:
    """Install exactly these wheels into the environment of `interpreter`, which has none of them.

    target: into this folder instead, as if the environment were there; scripts name `interpreter`.
    platform: of the wheels, if it is not this machine's.
    on_line: called, in another thread, with what uv says of each download and build, on a terminal.

    If several wheels bring the same file, the last wheel by name wins, on every machine.
    """
    build = ""
    for package in packages:
        if package.name == "torch":
            build = package.version.partition("+")[2]
    indexes = index_settings(build or None, mirrors)
    flags: list[str | Path] = [] if target is None else ["--prefix", target]
    if platform is not None:
        flags += ["--python-platform", python_platform(platform, UV_GLIBC[-1])]
    install = partial(_install, interpreter=interpreter, mirrors=mirrors, indexes=indexes)
    install(packages, flags, on_line=on_line)
    for site in (target or interpreter.parent.parent).glob("lib/python3*/site-packages"):
        for package in wheels_to_reinstall(packages, site):
            install([package], [*flags, "--reinstall"])


def cache_folder() -> Path:
    """Where uv keeps what it downloads (docs.astral.sh/uv/concepts/cache). uv is not asked: that needs
    room for temporary files, and this is for errors of full disks."""
    configured = index_settings().further.get("cache-dir", xdg_folder("CACHE") / "uv")
    return Path(os.environ.get(CACHE_VARIABLE) or str(configured)).absolute()


def recorded_wheels(prefix: Path) -> dict[str, set[str]]:
    """What the wheels of a prefix list, from site-packages on, by the name of their dist-info."""
    paths: dict[str, set[str]] = {}
    for dist_info in prefix.glob("lib/python3*/site-packages/*.dist-info"):
        if dist_info.name in paths:  # lib/python3.1 is a link to python3.11
            continue
        listed = paths[dist_info.name] = set()
        # One that cannot be read lists nothing; checking it later reports that.
        with suppress(OSError, ValueError, csv.Error):
            listed.update(map(normal_path, recorded_paths(dist_info / "RECORD")))
    return paths


def _install(
    packages: Sequence[LockedPackage],
    flags: Sequence[str | Path],
    *,
    interpreter: Path,
    mirrors: Mirrors,
    indexes: IndexSettings,
    on_line: Callable[[str], None] | None = None,
) -> None:
    """Packages of an index are requested by name, version and hash, so that uv finds what it has
    unpacked before, and a mirror can serve them; what uv 0.13 installs from a pylock file it
    downloads and unpacks each time (tried)."""
    files = [package for package in packages if not package.is_source]
    sources = [package for package in packages if package.is_source]
    if sources:  # uv builds them, and takes no hashes for them
        text = "".join(map(_source_requirement, sources))
        _pip_install(text, interpreter, indexes, flags, on_line)
    if not files:
        return
    text = hashed_requirements(files, mirrors)
    try:
        _pip_install(text, interpreter, indexes, [*flags, "--require-hashes"], on_line)
    except Unsolvable as error:
        raise Unreachable(
            f"A locked package is gone from the index: {error.message.partition(': ')[2]}",
            advice=CHOOSE_ANOTHER,
            details=error.details,
        ) from error


def _source_requirement(package: LockedPackage) -> str:
    """A git repository at its commit, or an editable folder."""
    if package.is_editable:
        return f"-e {path_from_url(package.url.removesuffix(EDITABLE))}\n"
    return f"{package.name} @ {package.url}\n"


def _pip_install(
    text: str,
    interpreter: Path,
    indexes: IndexSettings,
    flags: Sequence[str | Path],
    on_line: Callable[[str], None] | None,
) -> None:
    """Install the requirements of a text, without their dependencies."""

    def pass_on(line: str) -> None:
        if on_line is not None and STEPS.match(line):
            on_line(line.strip())

    with temporary_directory("uv") as folder:
        requirements = folder / "requirements.txt"
        requirements.write_text(text)
        command: list[str | Path] = [uv_executable(), "pip", "install", "--python", interpreter]
        command += ["--no-deps", "--no-python-downloads", *flags, "-r", requirements]
        run_uv(command, indexes, on_line=pass_on)


def hashed_requirements(packages: Sequence[LockedPackage], mirrors: Mirrors = NO_MIRRORS) -> str:
    """The requirements file, with hashes, from which uv installs.

    By name from an index; by URL what no index has.
    """
    lines = []
    for package in packages:
        requirement = f"{package.name}=={package.version}"
        if package.direct or package.url.startswith("file:"):
            requirement = f"{package.name} @ {mirrors.actual_url(package.url)}"
        lines.append(f"{requirement} --hash=sha256:{package.sha256}\n")
    return "".join(lines)


def wheels_to_reinstall(packages: Sequence[LockedPackage], site: Path) -> list[LockedPackage]:
    """The packages to install once more, in order, so that of each file that several packages
    bring, the last package by name wins.

    uv installs wheels in parallel, so by chance any of them may have written last. Most
    environments have no such files.
    """
    dist_infos = {
        canonicalize_name(path.name.split("-")[0]): path for path in site.glob("*.dist-info")
    }
    by_name = sorted(packages, key=lambda package: canonicalize_name(package.name))
    rows_by_path: dict[str, dict[str, tuple[str, ...]]] = {}
    for package in by_name:
        dist_info = dist_infos.get(canonicalize_name(package.name))
        for path, *row in _record_rows(dist_info) if dist_info else ():
            rows_by_path.setdefault(normal_path(path), {})[package.name] = tuple(row)
    last_owners = set()
    for path, rows in rows_by_path.items():
        if len(set(rows.values())) > 1 and not path.endswith(".pyc"):
            last_owners.add(list(rows)[-1])
    return [package for package in by_name if package.name in last_owners]


def _record_rows(dist_info: Path) -> list[list[str]]:
    """Path, hash and size of each file in a RECORD, as they are written there. One that cannot be
    read has no rows here; checking it later reports that."""
    with suppress(OSError, ValueError):
        lines = (dist_info / "RECORD").read_text(encoding="utf-8").splitlines()
        return [line.rsplit(",", 2) for line in lines if line]
    return []


def unpack_wheel(
    requirement: str, target: Path, *, python: str, mirrors: Mirrors = NO_MIRRORS
) -> str:
    """Unpack one package without its dependencies into a folder, and return its version."""
    command: list[str | Path] = [uv_executable(), "pip", "install", "--quiet", "--no-deps"]
    command += ["--target", target, "--python-version", python]
    command += ["--no-python-downloads", "--python", sys.executable]
    run_uv([*command, requirement], index_settings(mirrors=mirrors))
    return next(target.glob("*.dist-info")).name.removesuffix(".dist-info").rpartition("-")[2]
