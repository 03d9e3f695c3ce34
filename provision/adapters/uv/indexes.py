"""Where wheels come from: uv's own settings if it has any, else pip's."""

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
# uv's variables that name indexes.
INDEX_VARIABLES = (
    "UV_DEFAULT_INDEX",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_CONFIG_FILE",
)
# pip looks at all indexes and takes the best version; uv stops at the first index that has the
# name.
STRATEGY = ("--index-strategy", "unsafe-best-match")
# PyPI names a file by its content, and mirrors that keep its paths serve it under the same tail:
# /packages/, the BLAKE2b hash, the name.
_PYPI_PATH = re.compile(r"/packages/[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{60}/[^/]+$")


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """Options for uv: those that name indexes, and those that name this machine's disk."""

    remote: tuple[str, ...] = ()
    local: tuple[str, ...] = ()
    exclusive: bool = False  # ignore uv's own settings

    @property
    def with_local(self) -> tuple[str, ...]:
        """Both, those of the disk last."""
        return _with_one_strategy((*self.remote, *self.local))


def index_options(build_path: str | None = None, mirrors: Mirrors = NO_MIRRORS) -> IndexOptions:
    """Index options from the configuration, each index where its mirror is.

    build_path: the folder of PyTorch's own wheel index that holds the requested build (`cu126`,
    `cpu`), used if PROVISION_TORCH_INDEX names that index.
    """
    if mirrors.is_closed:
        return IndexOptions(remote=_mirror_folder_options(mirrors), exclusive=True)
    configured = IndexOptions() if _is_uv_configured() else _from_pip(pip_settings())
    options = _mirrored(configured, mirrors)
    torch_url = torch_index_url(build_path) if build_path else None
    if torch_url is None:
        return options
    remote = (*options.remote, "--index", mirrors.actual_url(torch_url), *STRATEGY)
    return IndexOptions(remote=_with_one_strategy(remote), local=options.local)


def torch_index_url(build_path: str) -> str | None:
    """The URL of a folder of PyTorch's own wheel index, if the user has named that index."""
    base = os.environ.get(TORCH_INDEX)
    return f"{base.rstrip('/')}/{build_path}" if base else None


def _with_one_strategy(options: Sequence[str]) -> tuple[str, ...]:
    """uv refuses a repeated option, even with the same value."""
    without_strategy = tuple(option for option in options if option not in STRATEGY)
    if len(without_strategy) == len(options):
        return without_strategy
    return without_strategy + STRATEGY


def _mirror_folder_options(mirrors: Mirrors) -> tuple[str, ...]:
    """Only the indexes of mirror folders; offline if all of them are on the disk."""
    first, *further = mirrors.indexes
    options = ["--no-config", "--default-index", first]
    for url in further:
        options += ["--index", url]
    if further:
        options += STRATEGY
    if all(url.startswith("file:") for url in mirrors.indexes):
        options.append("--offline")
    return tuple(options)


def _mirrored(options: IndexOptions, mirrors: Mirrors) -> IndexOptions:
    remote = [_mirrored_option(option, mirrors) for option in options.remote]
    local = [_mirrored_option(option, mirrors) for option in options.local]
    if mirrors.index:
        if remote[:1] == ["--default-index"]:
            remote = remote[2:]
        remote = ["--default-index", mirrors.index, *remote]
    return IndexOptions(remote=tuple(remote), local=tuple(local))


def _mirrored_option(option: str, mirrors: Mirrors) -> str:
    return mirrors.actual_url(option) if "://" in option else option


def _is_uv_configured() -> bool:
    if any(os.environ.get(name) for name in INDEX_VARIABLES):
        return True
    homes = (Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"), Path("/etc"))
    return any((home / "uv" / "uv.toml").exists() for home in homes)


def pip_settings() -> dict[str, str]:
    """pip's effective settings by name, later sources over earlier ones, as pip itself orders
    them."""
    variables = []
    for key, value in os.environ.items():
        if key.startswith(("PIP_", "XDG_", "HOME")):
            variables.append((key, value))
    return _read_pip_settings(tuple(sorted(variables)))


@functools.cache
def _read_pip_settings(variables: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Running pip takes 0.3 s: once per run, as long as the variables that decide its answer
    stay."""
    listing = run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"],
        check=False,
        env=dict(os.environ),
    )
    if listing.returncode != 0:  # no pip in this environment: no settings of pip to honor
        return {}
    return _parse_pip_settings(listing.stdout)


def _parse_pip_settings(listing: str) -> dict[str, str]:
    """`pip config list` names section and key, sorted by name; pip itself lets [install] win over
    [global] and both lose to PIP_*."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in sections:
            sections[section][name] = value.strip().strip("'\"").replace("\\n", " ")
    settings = {}
    for section_settings in sections.values():
        settings.update(section_settings)
    return settings


def _from_pip(settings: Mapping[str, str]) -> IndexOptions:
    remote: list[str] = []
    local: list[str] = []
    if settings.get("index-url"):
        remote += ["--default-index", settings["index-url"]]
    for url in settings.get("extra-index-url", "").split():
        options = local if url.startswith("file:") else remote
        options += ["--index", url]
    for location in settings.get("find-links", "").split():
        is_remote = "://" in location and not location.startswith("file:")
        options = remote if is_remote else local
        options += ["--find-links", location]
    for options in (remote, local):
        if options:
            options += STRATEGY
    return IndexOptions(remote=tuple(remote), local=tuple(local))


def canonical_file_url(url: str, sha256: str, mirrors: Mirrors) -> str:
    """The canonical URL of an index's file, as a lock names it: not that of the mirror that served
    it, if the canonical one can be derived."""
    canonical_url = mirrors.canonical_url(url, sha256)
    if canonical_url != url or not mirrors.index:
        return canonical_url
    pypi_path = _PYPI_PATH.search(urlsplit(url).path)
    host = _pypi_file_host() if pypi_path else None
    if pypi_path and host:
        return f"https://{host}{pypi_path[0]}"
    return canonical_url


def _pypi_file_host() -> str | None:
    """The host of PyPI's files, which pip knows."""
    try:
        # setuptools' import hook warns of pip on Python 3.10 and 3.11.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pip._internal.models.index import PyPI
    except ImportError:
        return None
    return str(PyPI.file_storage_domain)
