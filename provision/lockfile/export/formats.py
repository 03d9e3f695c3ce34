"""What other installers read: conda's explicit list, requirements with hashes, pylock.toml."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from packaging.utils import canonicalize_name

from provision.core.errors import IntegrityError
from provision.lockfile.conda_lock_v1_contents import LockEntry, LockFile
from provision.lockfile.content_hash import load_conda_lock

MACHINES = {
    "linux-64": "x86_64",
    "linux-aarch64": "aarch64",
    "linux-ppc64le": "ppc64le",
    "osx-64": "x86_64",
    "osx-arm64": "arm64",
}


def explicit(lock: LockFile, platform: str) -> str:
    """conda's @EXPLICIT list, as `conda-lock render -k explicit` writes it: by its own code, in the order in which to install."""
    load_conda_lock()
    from conda_lock.conda_lock import render_lockfile_for_platform
    from conda_lock.lockfile import parse_conda_lock_file

    parsed = parse_conda_lock_file(lock.path)
    lines = render_lockfile_for_platform(
        lockfile=parsed,
        include_dev_dependencies=False,
        extras=set(),
        kind="explicit",
        platform=platform,
        suppress_warning_for_pip_and_explicit=True,
    )
    return "\n".join(lines) + "\n"


def requirements(entries: Sequence[LockEntry], name: str, platform: str) -> str:
    """The wheels, for `pip install --require-hashes -r` and uv. conda's packages are none of theirs."""
    lines = [
        f"# The wheels of {name} for {platform}, from its conda-lock.yml; made by provision lock export.\n"
    ]
    for entry in _wheels(entries):
        wanted = (
            f"{entry.name} @ {entry.url}"
            if _by_address(entry)
            else f"{entry.name}=={entry.version}"
        )
        lines.append(f"{wanted} \\\n    --hash=sha256:{entry.sha256}\n")
    return "".join(lines)


def _wheels(entries: Sequence[LockEntry]) -> list[LockEntry]:
    found = sorted(
        (entry for entry in entries if entry.manager == "pip"), key=lambda entry: entry.name
    )
    for entry in found:
        if not entry.sha256:
            raise IntegrityError(
                f"{entry.name} has no sha256 in the lock.",
                advice="`provision lock verify` lists what is wrong with it.",
            )
    return found


def _by_address(entry: LockEntry) -> bool:
    """No index has a file of the disk."""
    return entry.url.startswith("file:")


def pylock(entries: Sequence[LockEntry], platform: str) -> str:
    """pylock.toml (PEP 751), checked by packaging's own reading of the standard."""
    import tomlkit
    from packaging.pylock import Pylock, PylockValidationError

    wheels = _wheels(entries)
    names: set[str] = {canonicalize_name(entry.name) for entry in wheels}
    content: dict[str, Any] = {"lock-version": "1.0"}
    if platform in MACHINES:
        system = "linux" if platform.startswith("linux") else "darwin"
        content["environments"] = [
            f"sys_platform == '{system}' and platform_machine == '{MACHINES[platform]}'"
        ]
    python = next(
        (entry.version for entry in entries if entry.manager == "conda" and entry.name == "python"),
        None,
    )
    if python:
        content["requires-python"] = f"=={'.'.join(python.split('.')[:2])}.*"
    content["created-by"] = "provision"
    content["packages"] = [_pylock_package(entry, names) for entry in wheels]
    try:
        Pylock.from_dict(content).validate()
    except PylockValidationError as error:
        raise ValueError(str(error)) from error
    return tomlkit.dumps(content)


def _pylock_package(entry: LockEntry, names: set[str]) -> dict[str, Any]:
    package: dict[str, Any] = {"name": canonicalize_name(entry.name), "version": entry.version}
    needs = sorted({canonicalize_name(name) for name, _ in entry.depends} & names)
    if needs:
        package["dependencies"] = [{"name": name} for name in needs]
    url = entry.url.partition("#")[0]
    file = {"name": unquote(entry.filename), "url": url, "hashes": {"sha256": entry.sha256}}
    if unquote(entry.filename).endswith(".whl"):
        package["wheels"] = [file]
    else:
        package["sdist"] = file
    return package
