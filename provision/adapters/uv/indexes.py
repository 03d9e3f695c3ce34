"""Where wheels come from: uv's own settings if it has any, else pip's."""

from __future__ import annotations

import configparser
import os
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from provision.adapters.uv.configuration import IndexTable, read_uv_settings, with_login
from provision.core.credentials import without_credentials
from provision.core.errors import ToolMissing
from provision.core.mirrors import NO_MIRRORS, Mirrors
from provision.core.process import run

TORCH_INDEX = "PROVISION_TORCH_INDEX"
# PyPI names a file by its content, and mirrors that keep its paths serve it under the same tail:
# /packages/, the BLAKE2b hash, the name.
_PYPI_PATH = re.compile(r"/packages/[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{60}/[^/]+$")


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """Where uv finds wheels, in the terms of uv.toml.

    indexes: tables of `[[index]]`. local_indexes, local_find_links: those on this machine's disk,
    used only if the others have no answer. best_match: the best version of all indexes, as pip
    does; uv by itself stops at the first index that has the name. further: other keys of uv.toml.
    origins: the settings that were taken over, and ignored: uv's that are left out, for people.
    """

    indexes: tuple[IndexTable, ...] = ()
    find_links: tuple[str, ...] = ()
    local_indexes: tuple[IndexTable, ...] = ()
    local_find_links: tuple[str, ...] = ()
    best_match: bool = False
    offline: bool = False
    further: Mapping[str, object] = field(default_factory=dict)
    origins: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def has_local(self) -> bool:
        return bool(self.local_indexes or self.local_find_links)

    @property
    def with_local(self) -> IndexSettings:
        """The same with the disk's locations, after the others."""
        return replace(
            self,
            indexes=(*self.indexes, *self.local_indexes),
            find_links=(*self.find_links, *self.local_find_links),
            local_indexes=(),
            local_find_links=(),
        )

    @property
    def default_index(self) -> str | None:
        """The address of the default index, if one is configured."""
        for index in self.indexes:
            if index.get("default"):
                return str(index["url"])
        return None

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where wheels come from, for messages."""
        addresses = [without_credentials(str(index["url"])) for index in self.indexes]
        if self.default_index is None:
            addresses.append("uv's default index")
        addresses += [without_credentials(location) for location in self.find_links]
        return tuple(addresses)

    def to_toml(self) -> str:
        """The text of a uv.toml with these settings."""
        import tomlkit

        content: dict[str, object] = dict(self.further)
        if self.best_match:
            content["index-strategy"] = "unsafe-best-match"
        if self.offline:
            content["offline"] = True
        if self.find_links:
            content["find-links"] = list(self.find_links)
        if self.indexes:
            content["index"] = [with_login(index, os.environ) for index in self.indexes]
        return tomlkit.dumps(content)


def index_settings(build_path: str | None = None, mirrors: Mirrors = NO_MIRRORS) -> IndexSettings:
    """The configured indexes, each where its mirror is.

    build_path: the folder of PyTorch's own wheel index that holds the requested build (`cu126`,
    `cpu`), used if PROVISION_TORCH_INDEX names that index.
    """
    if mirrors.is_closed:
        return _mirror_folder_settings(mirrors)
    settings = configured_settings()
    settings = _mirrored(settings, mirrors)
    torch_url = torch_index_url(build_path) if build_path else None
    if torch_url is None:
        return settings
    torch_index: IndexTable = {"url": mirrors.actual_url(torch_url)}
    return replace(settings, indexes=(*settings.indexes, torch_index), best_match=True)


def configured_settings() -> IndexSettings:
    """uv's own settings; with pip's indexes if uv's name no index."""
    own = read_uv_settings(os.environ)
    settings = IndexSettings(
        indexes=own.indexes,
        find_links=own.find_links,
        further=own.further,
        origins=own.origins,
        ignored=own.ignored,
    )
    if own.indexes or own.find_links:
        return settings
    from_pip = _from_pip(pip_settings())
    origins = (*from_pip.origins, *own.origins)
    return replace(from_pip, further=own.further, origins=origins, ignored=own.ignored)


def torch_index_url(build_path: str) -> str | None:
    """The URL of a folder of PyTorch's own wheel index, if the user has named that index."""
    base = os.environ.get(TORCH_INDEX)
    return f"{base.rstrip('/')}/{build_path}" if base else None


def _mirror_folder_settings(mirrors: Mirrors) -> IndexSettings:
    """Only the indexes of mirror folders; offline if all of them are on the disk."""
    first, *extra_urls = mirrors.indexes
    indexes: list[IndexTable] = [{"url": first, "default": True}]
    indexes += [{"url": url} for url in extra_urls]
    return IndexSettings(
        indexes=tuple(indexes),
        best_match=bool(extra_urls),
        offline=all(url.startswith("file:") for url in mirrors.indexes),
    )


def _mirrored(settings: IndexSettings, mirrors: Mirrors) -> IndexSettings:
    indexes = _mirrored_indexes(settings.indexes, mirrors)
    if mirrors.index:
        indexes = [index for index in indexes if not index.get("default")]
        indexes.insert(0, {"url": mirrors.index, "default": True})
    return replace(
        settings,
        indexes=tuple(indexes),
        find_links=_mirrored_locations(settings.find_links, mirrors),
        local_indexes=tuple(_mirrored_indexes(settings.local_indexes, mirrors)),
        local_find_links=_mirrored_locations(settings.local_find_links, mirrors),
    )


def _mirrored_indexes(indexes: Sequence[IndexTable], mirrors: Mirrors) -> list[IndexTable]:
    return [{**index, "url": mirrors.actual_url(index["url"])} for index in indexes]


def _mirrored_locations(locations: Sequence[str], mirrors: Mirrors) -> tuple[str, ...]:
    mirrored = []
    for location in locations:
        mirrored.append(mirrors.actual_url(location) if "://" in location else location)
    return tuple(mirrored)


_PIP_SYSTEM_FILE = Path("/etc/pip.conf")


def pip_settings() -> dict[str, str]:
    """pip's effective settings by name, later sources over earlier ones, as pip itself orders
    them."""
    variables = []
    for key, value in os.environ.items():
        if key.startswith(("PIP_", "XDG_", "HOME")):
            variables.append((key, value))
    return _read_pip_settings(tuple(sorted(variables)))


@cache
def _read_pip_settings(variables: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Running pip takes 0.3 s or more: only if several files are to be merged, or one cannot be
    read, and once per run, as long as the variables that decide its answer stay."""
    environ = dict(variables)
    files = [path for path in _pip_configuration_files(environ) if path.exists()]
    if not files:
        return _pip_variables(environ)
    if len(files) == 1 and "PIP_CONFIG_FILE" not in environ:
        try:
            return {**_parse_pip_file(files[0]), **_pip_variables(environ)}
        except (configparser.Error, OSError, UnicodeDecodeError):
            pass  # pip says what is wrong
    listing = run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"],
        check=False,
        env=dict(os.environ),
    )
    if listing.returncode != 0:  # no pip in this environment: no settings of pip to honor
        return {}
    return _parse_pip_settings(listing.stdout)


def _pip_configuration_files(environ: Mapping[str, str]) -> list[Path]:
    """Where pip looks for settings on Linux. Source: https://pip.pypa.io/en/stable/topics/configuration/"""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:  # then pip reads no file at all
        return []
    home = Path.home()
    folders = [Path(text) for text in environ.get("XDG_CONFIG_DIRS", "").split(":") if text]
    folders = folders or [Path("/etc/xdg")]
    user_folder = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [folder / "pip" / "pip.conf" for folder in (*folders, user_folder)]
    files += [_PIP_SYSTEM_FILE, home / ".pip" / "pip.conf", Path(sys.prefix) / "pip.conf"]
    return [*files, Path(named)] if named else files


def _parse_pip_file(path: Path) -> dict[str, str]:
    """The settings of one file: [install] wins over [global]; other sections are of other
    commands."""
    parser = configparser.RawConfigParser()
    parser.read_string(path.read_text(encoding="utf-8"))
    settings = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            for name, value in parser.items(section):
                settings[name.replace("_", "-").removeprefix("--")] = value.replace("\n", " ")
    return settings


def _pip_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings that PIP_* variables give: PIP_INDEX_URL is `index-url`."""
    settings = {}
    for key, value in sorted(environ.items()):
        if key.startswith("PIP_"):
            settings[key.removeprefix("PIP_").lower().replace("_", "-")] = value
    return settings


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


def _from_pip(settings: Mapping[str, str]) -> IndexSettings:
    indexes: list[IndexTable] = []
    local_indexes: list[IndexTable] = []
    find_links: list[str] = []
    local_find_links: list[str] = []
    if settings.get("index-url"):
        indexes.append({"url": settings["index-url"], "default": True})
    for url in settings.get("extra-index-url", "").split():
        is_local = url.startswith("file:")
        (local_indexes if is_local else indexes).append({"url": url})
    for location in settings.get("find-links", "").split():
        is_local = "://" not in location or location.startswith("file:")
        if "://" not in location:
            location = str(Path(location).expanduser().absolute())
        (local_find_links if is_local else find_links).append(location)
    names = []
    for name in ("index-url", "extra-index-url", "find-links"):
        if settings.get(name):
            names.append(f"pip's {name}")
    return IndexSettings(
        indexes=tuple(indexes),
        find_links=tuple(find_links),
        local_indexes=tuple(local_indexes),
        local_find_links=tuple(local_find_links),
        best_match=bool(names),
        origins=tuple(names),
    )


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
    pypi = _pypi()
    return str(pypi.file_storage_domain) if pypi else None


def pypi_url() -> str:
    """The address of PyPI, uv's default index, which pip knows. Raises ToolMissing without pip."""
    pypi = _pypi()
    if pypi is None:
        raise ToolMissing("pip is missing, which knows the address of PyPI.", advice="Install pip.")
    return str(pypi.simple_url)


def _pypi() -> Any:
    try:
        # setuptools' import hook warns of pip on Python 3.10 and 3.11.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pip._internal.models.index import PyPI
    except ImportError:
        return None
    return PyPI
