"""Where wheels come from: uv's own settings when it has any, else pip's."""

from __future__ import annotations

import functools
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from provision.core.mirrors import NO_MIRRORS, Mirrors
from provision.core.process import run

TORCH_INDEX = "PROVISION_TORCH_INDEX"


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """Options for uv: those that name index_options, and those that name this machine's disk."""

    remote: tuple[str, ...] = ()
    local: tuple[str, ...] = ()
    alone: bool = False  # whatever uv's own settings say

    @property
    def every(self) -> tuple[str, ...]:
        """Those of the disk, too."""
        return _one_strategy((*self.remote, *self.local))


def index_options(build_path: str | None = None, mirrors: Mirrors = NO_MIRRORS) -> IndexOptions:
    """Index options from the configuration, each index where its mirror is.

    build_path: the folder of PyTorch's own wheel index that holds the wanted build (`cu126`, `cpu`), used when the user has
    named that index in PROVISION_TORCH_INDEX.
    """
    if mirrors.is_closed:
        return IndexOptions(remote=_of_folders(mirrors), alone=True)
    found = _mirrored(IndexOptions() if _uv_is_configured() else _from_pip(pip_settings()), mirrors)
    if build_path and (url := torch_index_url(build_path)):
        extra = ("--index", mirrors.actual_url(url), *STRATEGY)
        return IndexOptions(remote=_one_strategy(found.remote + extra), local=found.local)
    return found


# pip looks at all indexes and takes the best version; uv stops at the first index that has the name.
STRATEGY = ("--index-strategy", "unsafe-best-match")


def _one_strategy(options: Sequence[str]) -> tuple[str, ...]:
    """uv refuses an option that is given twice, even with the same value."""
    others = tuple(word for word in options if word not in STRATEGY)
    return others + STRATEGY if len(others) < len(options) else others


def torch_index_url(build_path: str) -> str | None:
    """The address of a folder of PyTorch's own wheel index, if the user has named that index."""
    base = os.environ.get(TORCH_INDEX)
    return f"{base.rstrip('/')}/{build_path}" if base else None


def _of_folders(mirrors: Mirrors) -> tuple[str, ...]:
    """The folders' indexes alone; from the disk nothing needs a network, so none is tried."""
    first, *more = mirrors.indexes
    options = [
        "--no-config",
        "--default-index",
        first,
        *(word for url in more for word in ("--index", url)),
    ]
    options += STRATEGY if more else ()
    return (
        *options,
        *(["--offline"] if all(url.startswith("file:") for url in mirrors.indexes) else []),
    )


def _mirrored(found: IndexOptions, mirrors: Mirrors) -> IndexOptions:
    remote, local = (
        [mirrors.actual_url(word) if "://" in word else word for word in options]
        for options in (found.remote, found.local)
    )
    if mirrors.index:
        remote = [
            "--default-index",
            mirrors.index,
            *(remote[2:] if remote[:1] == ["--default-index"] else remote),
        ]
    return IndexOptions(remote=tuple(remote), local=tuple(local))


def _uv_is_configured() -> bool:
    names = (
        "UV_DEFAULT_INDEX",
        "UV_INDEX",
        "UV_INDEX_URL",
        "UV_EXTRA_INDEX_URL",
        "UV_FIND_LINKS",
        "UV_CONFIG_FILE",
    )
    homes = (Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"), Path("/etc"))
    return any(os.environ.get(name) for name in names) or any(
        (home / "uv" / "uv.toml").exists() for home in homes
    )


def pip_settings() -> dict[str, str]:
    """pip's effective settings by name, later sources over earlier ones, as pip itself orders them."""
    return _asked_pip(
        tuple(
            sorted(
                (key, value)
                for key, value in os.environ.items()
                if key.startswith(("PIP_", "XDG_", "HOME"))
            )
        )
    )


@functools.cache
def _asked_pip(variables: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Asking pip takes 0.3 s: once per run, as long as the variables that decide its answer stay."""
    listed = run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"],
        check=False,
        env=dict(os.environ),
    )
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


def _from_pip(settings: Mapping[str, str]) -> IndexOptions:
    remote: list[str] = []
    local: list[str] = []
    if settings.get("index-url"):
        remote += ["--default-index", settings["index-url"]]
    for url in settings.get("extra-index-url", "").split():
        (local if url.startswith("file:") else remote).extend(["--index", url])
    for place in settings.get("find-links", "").split():
        (remote if "://" in place and not place.startswith("file:") else local).extend(
            ["--find-links", place]
        )
    for options in (remote, local):
        options += STRATEGY if options else ()
    return IndexOptions(remote=tuple(remote), local=tuple(local))


# PyPI names a file by its content, and mirrors that keep its paths serve it under the same tail: /packages/, the BLAKE2b hash, the name.
_OF_PYPI = re.compile(r"/packages/[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{60}/[^/]+$")


def own_address(url: str, sha256: str, mirrors: Mirrors) -> str:
    """By which address a lock names a file that an index told: its own, whatever mirror served it, as far as that can be known."""
    found = mirrors.canonical_url(url, sha256)
    if (
        found == url
        and mirrors.index
        and (path := _OF_PYPI.search(urlsplit(url).path))
        and (host := _file_host())
    ):
        return f"https://{host}{path[0]}"
    return found


def _file_host() -> str | None:
    """Where PyPI's files are, from whoever knows: pip does."""
    try:
        with (
            warnings.catch_warnings()
        ):  # setuptools' import hook warns of pip on Python 3.10 and 3.11
            warnings.simplefilter("ignore")
            from pip._internal.models.index import PyPI
    except ImportError:
        return None
    return str(PyPI.file_storage_domain)
