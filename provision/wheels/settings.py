"""Where wheels come from: uv's own settings when it has any, else pip's."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provision.process import run

TORCH_INDEX = "PROVISION_TORCH_INDEX"


@dataclass(frozen=True, kw_only=True)
class Indexes:
    """Options for uv: those that name indexes, and those that name this machine's disk."""

    remote: tuple[str, ...] = ()
    local: tuple[str, ...] = ()


def indexes(build_path: str | None = None) -> Indexes:
    """Index options from the configuration.

    build_path: the folder of PyTorch's own wheel index that holds the wanted build (`cu126`, `cpu`), used when the user has
    named that index in PROVISION_TORCH_INDEX.
    """
    found = Indexes() if _uv_is_configured() else _from_pip(pip_settings())
    base = os.environ.get(TORCH_INDEX)
    if build_path and base:
        extra = ("--index", f"{base.rstrip('/')}/{build_path}", "--index-strategy", "unsafe-best-match")
        return Indexes(remote=found.remote + extra, local=found.local)
    return found


def _uv_is_configured() -> bool:
    names = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_CONFIG_FILE")
    homes = (Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"), Path("/etc"))
    return any(os.environ.get(name) for name in names) or any((home / "uv" / "uv.toml").exists() for home in homes)


def pip_settings() -> dict[str, str]:
    """pip's effective settings by name, later sources over earlier ones, as pip itself orders them."""
    return _asked_pip(tuple(sorted((key, value) for key, value in os.environ.items() if key.startswith(("PIP_", "XDG_", "HOME")))))


@functools.cache
def _asked_pip(variables: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Asking pip takes 0.3 s: once per run, as long as the variables that decide its answer stay."""
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
