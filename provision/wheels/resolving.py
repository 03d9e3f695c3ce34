"""Which wheels satisfy requirements: one file each, with its hash."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.compat import version_key
from provision.errors import Unsolvable
from provision.model import LockedPackage
from provision.wheels.command import call, uv
from provision.wheels.settings import indexes

# uv --python-platform takes these glibc versions only (uv pip compile --help); the newest not above the wanted one is used.
UV_GLIBC = ("2.17", "2.28", "2.31", "2.32", "2.33", "2.34", "2.35", "2.36", "2.37", "2.38", "2.39", "2.40")


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
        call([*command, "--format", "pylock.toml", "-o", answer])
        # The pylock file has no dependency edges; the annotated list has. The second run reads uv's cache (0.1 to 0.3 s).
        edges = call([*command, "--annotation-style", "split"])
        return _read_pylock(answer.read_text(), _edges(edges))


def _uv_glibc(glibc: str) -> str:
    return max((known for known in UV_GLIBC if version_key(known) <= version_key(glibc)), key=version_key, default=UV_GLIBC[0])


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
