"""The one door to uv: which wheels satisfy requirements, and installing exactly those.

Where wheels come from is configuration: uv's own settings when it has any, else pip's. Addresses of this machine's own disk
(`file:` indexes, find-links folders) are asked only when the indexes cannot satisfy the request, so that a lock names files
that others can fetch wherever that is possible.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.compat import version_key
from provision.errors import IntegrityError, NoSpace, ProvisionError, ToolFailed, ToolMissing, Unreachable, Unsolvable
from provision.model import LockedPackage
from provision.process import clean_environment, run

# uv --python-platform takes these glibc versions only (uv pip compile --help); the newest not above the wanted one is used.
UV_GLIBC = ("2.17", "2.28", "2.31", "2.32", "2.33", "2.34", "2.35", "2.36", "2.37", "2.38", "2.39", "2.40")
TORCH_INDEX = "PROVISION_TORCH_INDEX"


@dataclass(frozen=True, kw_only=True)
class Indexes:
    """Options for uv: those that name indexes, and those that name this machine's disk."""

    remote: tuple[str, ...] = ()
    local: tuple[str, ...] = ()


def uv() -> str:
    """The uv executable that came with us as a package."""
    try:
        from uv import find_uv_bin

        return os.fsdecode(find_uv_bin())
    except (ImportError, FileNotFoundError) as error:
        raise ToolMissing("The uv executable is missing.", advice="Reinstall provision: it brings uv as a package.") from error


def indexes(build_path: str | None = None) -> Indexes:
    """Index options from the configuration.

    build_path: the folder of PyTorch's own wheel index that holds the wanted build (`cu126`, `cpu`), used when the user has
    named that index in PROVISION_TORCH_INDEX.
    """
    found = Indexes() if _uv_is_configured() else _from_pip(_pip_settings())
    base = os.environ.get(TORCH_INDEX)
    if build_path and base:
        extra = ("--index", f"{base.rstrip('/')}/{build_path}", "--index-strategy", "unsafe-best-match")
        return Indexes(remote=found.remote + extra, local=found.local)
    return found


def _uv_is_configured() -> bool:
    names = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_CONFIG_FILE")
    homes = (Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"), Path("/etc"))
    return any(os.environ.get(name) for name in names) or any((home / "uv" / "uv.toml").exists() for home in homes)


def _pip_settings() -> dict[str, str]:
    """pip's effective settings by name, later sources over earlier ones, as pip itself orders them."""
    listed = run([sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"], check=False, env=dict(os.environ))
    if listed.returncode != 0:  # no pip in this environment: nothing of pip's to honor
        return {}
    return _read_pip_settings(listed.stdout)


def _read_pip_settings(listed: str) -> dict[str, str]:
    """`pip config list` names section and key, sorted by name; pip itself lets [install] win over [global] and both lose to PIP_*."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in sections:
            sections[section][name] = value.strip().strip("'\"").replace("\\n", " ")
    return {name: value for section in sections.values() for name, value in section.items()}


def _from_pip(settings: Mapping[str, str]) -> Indexes:
    remote: list[str] = []
    local: list[str] = []
    if settings.get("index-url"):
        remote += ["--default-index", settings["index-url"]]
    for url in settings.get("extra-index-url", "").split():
        (local if url.startswith("file:") else remote).extend(["--index", url])
    for place in settings.get("find-links", "").split():
        (remote if "://" in place and not place.startswith("file:") else local).extend(["--find-links", place])
    for options in (remote, local):
        if options:  # pip looks at all indexes and takes the best version; uv stops at the first index that has the name
            options += ["--index-strategy", "unsafe-best-match"]
    return Indexes(remote=tuple(remote), local=tuple(local))


def resolve(
    requirements: Sequence[str],
    *,
    python: str,
    glibc: str,
    constraints: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    build_path: str | None = None,
) -> tuple[LockedPackage, ...]:
    """The wheels that satisfy requirements on Linux x86_64 with this Python and glibc, one file each, with hashes.

    leave_out: names that conda provides; they bind the resolution (through constraints) but are not part of the answer.
    Raises Unsolvable, or Unreachable when an index does not answer.
    """
    where = indexes(build_path)
    try:
        return _resolve(requirements, python, glibc, constraints, leave_out, where.remote)
    except Unsolvable:
        if not where.local:
            raise
        return _resolve(requirements, python, glibc, constraints, leave_out, where.remote + where.local)


def _resolve(
    requirements: Sequence[str],
    python: str,
    glibc: str,
    constraints: Sequence[str],
    leave_out: Sequence[str],
    index_options: Sequence[str],
) -> tuple[LockedPackage, ...]:
    with tempfile.TemporaryDirectory(prefix="provision-") as folder:
        wanted, bounds, answer = (Path(folder) / name for name in ("requirements.in", "constraints.txt", "pylock.toml"))
        wanted.write_text("".join(f"{line}\n" for line in requirements))
        bounds.write_text("".join(f"{line}\n" for line in constraints))
        command: list[str | Path] = [
            uv(),
            "pip",
            "compile",
            wanted,
            "--constraints",
            bounds,
            "--quiet",
            "--no-header",
            "--python-version",
            python,
        ]
        command += ["--python-platform", f"x86_64-manylinux_{_uv_glibc(glibc).replace('.', '_')}", *index_options]
        for name in leave_out:
            command += ["--no-emit-package", name]
        _uv([*command, "--format", "pylock.toml", "-o", answer])
        # The pylock file has no dependency edges; the annotated list has. The second run reads uv's cache (0.1 to 0.3 s).
        edges = _uv([*command, "--annotation-style", "split"])
        return _read_pylock(answer.read_text(), _edges(edges))


def _uv_glibc(glibc: str) -> str:
    return max((known for known in UV_GLIBC if version_key(known) <= version_key(glibc)), key=version_key, default=UV_GLIBC[0])


def _uv(command: Sequence[str | Path], *, show: bool = False) -> str:
    """Run uv; its failures come back as ours."""
    env = clean_environment({"UV_NO_PROGRESS": "1"} if not sys.stderr.isatty() else None)
    try:
        return run(command, env=env, show=show).stdout
    except ToolFailed as error:
        raise explain(error) from error


def explain(error: ToolFailed) -> ProvisionError:
    """uv's failure in our terms. The texts are uv 0.13's; what is not recognized stays a ToolFailed."""
    text = error.tail
    said = text.partition("error: ")[2] or text
    sentence = "; ".join(line.strip().removeprefix("cause: ") for line in said.splitlines() if line.strip())
    if found := re.search(r"Hash mismatch for `([^`]+)`", text):
        return IntegrityError(
            f"{found[1]} is not the file that the lock names: its hash differs from the one in conda-lock.yml.",
            advice="Restore the lock or run `provision lock --relock`; nothing was changed.",
            details=text,
        )
    if "No space left" in text or "os error 28" in text or "Disk quota exceeded" in text:
        return NoSpace("The disk is full.", advice="Free space and run the same command again; nothing was changed.", details=text)
    if found := re.search(r"(?:HTTP status client error \((?:404|410)[^)]*\)|404 Not Found|410 Gone)[^\n]*", text):
        return Unreachable(
            f"A package is gone from the index: {_shorten(sentence)}.",
            advice="Run `provision lock --relock` to choose versions that are still served.",
            details=text,
        )
    if "No solution found" in text:
        return Unsolvable(f"No set of wheels satisfies the request: {_because(text)}", details=text)
    if "error sending request" in text or "client error (Connect)" in text or "dns error" in text or "timed out" in text:
        return Unreachable(
            f"The package index did not answer: {_shorten(sentence)}.",
            advice="Check the network, or the index settings of uv or pip.",
            details=text,
        )
    return error


def _because(text: str) -> str:
    cause = text.partition("cause:")[2] or text
    return _shorten(" ".join(cause.split()))


def _shorten(text: str, limit: int = 400) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _read_pylock(text: str, edges: Mapping[str, tuple[str, ...]]) -> tuple[LockedPackage, ...]:
    packages = _toml(text).get("packages", [])
    return tuple(_package(entry, edges) for entry in packages)


def _toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    content: dict[str, Any] = tomllib.loads(text)
    return content


def _package(entry: dict[str, Any], edges: Mapping[str, tuple[str, ...]]) -> LockedPackage:
    archive = (entry.get("wheels") or [None])[0] or entry.get("sdist") or entry.get("archive")
    if archive is None or "sha256" not in archive.get("hashes", {}):
        raise Unsolvable(
            f"{entry['name']} {entry.get('version', '')} has no file with a sha256 that fits this platform, so it cannot be locked.",
            advice="Pin another version of it, or take it from conda.",
        )
    url = archive.get("url") or Path(archive["path"]).absolute().as_uri()
    return LockedPackage(
        manager="pip",
        name=entry["name"],
        version=entry["version"],
        url=url,
        sha256=archive["hashes"]["sha256"],
        depends=edges.get(entry["name"], ()),
        direct="archive" in entry,
    )


def _edges(annotated: str) -> dict[str, tuple[str, ...]]:
    """Package -> what it needs, from uv's `# via` comments (which say it the other way round)."""
    needs: dict[str, set[str]] = {}
    current = ""
    for line in annotated.splitlines():
        words = line.strip().removeprefix("#").strip()
        if line and not line[0].isspace() and not line.startswith("#"):
            current = re.split(r"[=<>!~ @\[]", line, maxsplit=1)[0]
        elif (parent := words.removeprefix("via").strip()) and not parent.startswith("-"):
            needs.setdefault(parent.split()[0], set()).add(current)
    return {name: tuple(sorted(names)) for name, names in needs.items()}


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
            _uv(command, show=True)
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
    _uv([*command, "--python", sys.executable, *indexes().remote, requirement])
    info = next(target.glob("*.dist-info"))
    return info.name.removesuffix(".dist-info").rpartition("-")[2]
