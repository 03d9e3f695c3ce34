"""Installs exactly the wheels of a lock, every one checked against its hash; and fingerprints
installed wheels, so that later changes show."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
import posixpath
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from provision.adapters.uv.indexes import IndexSettings, index_settings
from provision.adapters.uv.uv_process import is_index_silent, run_uv, uv_executable
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
    """Install exactly these wheels into the environment of `interpreter`.

    If several wheels bring the same file, the last wheel by name wins, on every machine.
    On a terminal uv's own progress bars are shown. If no index answers but uv's cache holds all
    wheels, installs them from there and says so through `warn`.
    """
    build = ""
    for package in packages:
        if package.name == "torch":
            build = package.version.partition("+")[2]
    indexes = index_settings(build or None, mirrors)
    _install(packages, interpreter, mirrors, indexes, warn=warn)
    for site in interpreter.parent.parent.glob("lib/python3*/site-packages"):
        for package in wheels_to_reinstall(packages, site):
            _install([package], interpreter, mirrors, indexes, "--reinstall", warn=warn)


def _install(
    packages: Sequence[LockedPackage],
    interpreter: Path,
    mirrors: Mirrors,
    indexes: IndexSettings,
    *flags: str,
    warn: Callable[[str], None],
) -> None:
    """Packages of an index are requested by name, version and hash, so that uv finds what it has
    unpacked before, and a mirror can serve them; what uv 0.13 installs from a pylock file it
    downloads and unpacks each time (tried)."""
    with temporary_directory("uv") as folder:
        requirements = folder / "requirements.txt"
        requirements.write_text(hashed_requirements(packages, mirrors))
        command: list[str | Path] = [uv_executable(), "pip", "install", "--python", interpreter]
        command += ["--no-deps", "--require-hashes", "--no-python-downloads"]
        command += [*flags, "-r", requirements]
        try:
            run_uv(command, indexes, show=True)
        except Unreachable as error:
            if not is_index_silent(error):
                raise
            with contextlib.suppress(ProvisionError):  # uv's cache may hold them all
                run_uv([*command, "--offline"], indexes, show=True)
                warn(
                    f"{error.message} All wheels were in uv's cache, and were installed from there."
                )
                return
            raise
        except Unsolvable as error:
            raise Unreachable(
                f"A locked package is gone from the index: {error.message.partition(': ')[2]}",
                advice="Run `provision lock --relock` to choose versions that are still served; "
                "nothing was changed.",
                details=error.details,
            ) from error


def hashed_requirements(packages: Sequence[LockedPackage], mirrors: Mirrors = NO_MIRRORS) -> str:
    """The requirements file, with hashes, from which uv installs.

    By name from an index; by URL what no index has. A mirror folder has an index of all its wheels.
    """
    lines = []
    for package in packages:
        url = mirrors.actual_url(package.url, package.sha256)
        has_index = mirrors.is_closed and url != package.url
        requirement = f"{package.name}=={package.version}"
        if (package.direct or package.url.startswith("file:")) and not has_index:
            requirement = f"{package.name} @ {url}"
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
            rows_by_path.setdefault(posixpath.normpath(path), {})[package.name] = tuple(row)
    last_owners = set()
    for path, rows in rows_by_path.items():
        if len(set(rows.values())) > 1 and not path.endswith(".pyc"):
            last_owners.add(list(rows)[-1])
    return [package for package in by_name if package.name in last_owners]


def _record_rows(dist_info: Path) -> list[list[str]]:
    """The rows of a RECORD. One that cannot be read has no rows here; checking it later reports
    that."""
    with contextlib.suppress(OSError, ValueError, csv.Error):
        lines = (dist_info / "RECORD").read_text(encoding="utf-8").splitlines()
        return [row for row in csv.reader(lines) if row]
    return []


def unpack_wheel(
    requirement: str, target: Path, *, python: str, mirrors: Mirrors = NO_MIRRORS
) -> str:
    """Unpack one package without its dependencies into a folder, and return its version."""
    command: list[str | Path] = [uv_executable(), "pip", "install", "--quiet", "--no-deps"]
    command += ["--target", target, "--python-version", python]
    command += ["--no-python-downloads", "--python", sys.executable]
    run_uv([*command, requirement], index_settings(mirrors=mirrors))
    dist_info = next(target.glob("*.dist-info"))
    return dist_info.name.removesuffix(".dist-info").rpartition("-")[2]


def fingerprints(prefix: Path) -> dict[str, str]:
    """The fingerprint of every wheel in a prefix, by the name of its dist-info folder."""
    records = sorted(prefix.glob("lib/python3*/site-packages/*.dist-info/RECORD"))
    return {record.parent.name: fingerprint(record) for record in records}


def fingerprint(record: Path) -> str:
    """A hash over a RECORD, which lists each file's hash, and the names of executable files, which
    no RECORD marks."""
    content = record.read_bytes()
    site = record.parent.parent
    executables = []
    for row in csv.reader(content.decode(errors="replace").splitlines()):
        if row and _is_executable(site / row[0]):
            executables.append(row[0])
    return hashlib.sha256(content + json.dumps(sorted(executables)).encode()).hexdigest()


def _is_executable(path: Path) -> bool:
    try:
        return not path.name.endswith(".pyc") and bool(os.lstat(path).st_mode & 0o100)
    except (OSError, ValueError):
        return False
