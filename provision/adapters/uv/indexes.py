"""Where wheels come from: uv's own settings if it has any, else pip's."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from provision.adapters.uv.configuration import IndexSettings, IndexTable, read_uv_settings
from provision.core.errors import InvalidSpec, ToolMissing
from provision.core.mirrors import NO_MIRRORS, Mirrors

TORCH_INDEX = "PROVISION_TORCH_INDEX"
# PyPI names a file by its content, and mirrors that keep its paths serve it under the same tail:
# /packages/, the BLAKE2b hash, the name.
_PYPI_PATH = re.compile(r"/packages/[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{60}/[^/]+$")


def index_settings(build_path: str | None = None, mirrors: Mirrors = NO_MIRRORS) -> IndexSettings:
    """The configured indexes, each where its mirror is.

    build_path: the folder of PyTorch's own wheel index that holds the requested build (`cu126`,
    `cpu`), used if PROVISION_TORCH_INDEX names that index.
    """
    settings = configured_settings()
    settings = _mirrored(settings, mirrors)
    if mirrors.index:
        further = [index for index in settings.indexes if not index.get("default")]
        settings = replace(settings, indexes=({"url": mirrors.index, "default": True}, *further))
    torch_url = torch_index_url(build_path) if build_path else None
    if torch_url is None:
        return settings
    torch_index: IndexTable = {"url": mirrors.actual_url(torch_url)}
    return replace(settings, indexes=(*settings.indexes, torch_index), best_match=True)


def configured_settings() -> IndexSettings:
    """uv's own settings; with pip's indexes if uv's name no index."""
    uv_settings = read_uv_settings(os.environ)
    if uv_settings.indexes or uv_settings.find_links:
        return uv_settings
    from_pip = _from_pip(pip_settings())
    origins = (*from_pip.origins, *uv_settings.origins)
    return replace(
        from_pip, further=uv_settings.further, origins=origins, ignored=uv_settings.ignored
    )


def torch_index_url(build_path: str) -> str | None:
    """The URL of a folder of PyTorch's own wheel index, if the user has named that index."""
    base = os.environ.get(TORCH_INDEX)
    return f"{base.rstrip('/')}/{build_path}" if base else None


def _mirrored(settings: IndexSettings, mirrors: Mirrors) -> IndexSettings:
    return replace(
        settings,
        indexes=tuple(
            {**index, "url": mirrors.actual_url(index["url"])} for index in settings.indexes
        ),
        find_links=tuple(map(mirrors.actual_url, settings.find_links)),
        local=_mirrored(settings.local, mirrors) if settings.local else None,
    )


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
    """Reads the files as pip does (its `_internal/configuration.py`): to ask it takes 0.3 s.

    [install] wins over [global]; other sections are of other commands. Raises InvalidSpec for a file
    with which pip would not start either.
    """
    environ = dict(variables)
    import configparser

    parser = configparser.RawConfigParser()
    parser.optionxform = _pip_name  # type: ignore[assignment,method-assign]
    try:
        parser.read(_pip_configuration_files(environ), encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise InvalidSpec(
            f"pip's settings cannot be read: {error}.", advice="`pip config debug` names its files."
        ) from error
    settings = {}
    for section in ("global", "install"):
        if parser.has_section(section):
            for name, value in parser.items(section):
                settings[name] = value.replace("\n", " ")
    for key, value in variables:  # PIP_INDEX_URL is `index-url`
        if key.startswith("PIP_"):
            settings[_pip_name(key.removeprefix("PIP_"))] = value
    return settings


def _pip_name(option: str) -> str:
    return option.lower().replace("_", "-").removeprefix("--")


def _pip_configuration_files(environ: Mapping[str, str]) -> list[Path]:
    """Where pip looks for settings on Linux, later files over earlier ones."""
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:  # then pip reads no file at all
        return []
    home = Path.home()
    folders = [Path(text) for text in environ.get("XDG_CONFIG_DIRS", "").split(":") if text]
    files = [folder / "pip" / "pip.conf" for folder in folders or [Path("/etc/xdg")]]
    files.append(_PIP_SYSTEM_FILE)
    if not (named and Path(named).exists()):
        user_folder = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
        files += [home / ".pip" / "pip.conf", user_folder / "pip" / "pip.conf"]
    files.append(Path(sys.prefix) / "pip.conf")
    return [*files, Path(named)] if named else files


def _from_pip(settings: Mapping[str, str]) -> IndexSettings:
    names = ("index-url", "extra-index-url", "find-links")
    main, *lists = (settings.get(name, "") for name in names)
    extra, locations = (text.split() for text in lists)
    links = [
        location if "://" in location else str(Path(location).expanduser().absolute())
        for location in locations
    ]
    local = IndexSettings(
        indexes=tuple({"url": url} for url in extra if url.startswith("file:")),
        find_links=tuple(filter(_is_local, links)),
    )
    indexes: list[IndexTable] = [{"url": main, "default": True}] if main else []
    indexes += [{"url": url} for url in extra if not url.startswith("file:")]
    origins = [f"pip's {name}" for name in names if settings.get(name)]
    return IndexSettings(
        indexes=tuple(indexes),
        find_links=tuple(link for link in links if not _is_local(link)),
        local=local if local.indexes or local.find_links else None,
        best_match=bool(origins),
        origins=tuple(origins),
    )


def _is_local(location: str) -> bool:
    return "://" not in location or location.startswith("file:")


def canonical_file_url(url: str, mirrors: Mirrors) -> str:
    """The canonical URL of an index's file, as a lock names it: not that of the mirror that served
    it, if the canonical one can be derived."""
    canonical_url = mirrors.canonical_url(url)
    if canonical_url != url or not mirrors.index:
        return canonical_url
    pypi_path = _PYPI_PATH.search(urlsplit(url).path)
    pypi = _pypi() if pypi_path else None
    if pypi_path and pypi:
        return f"https://{pypi.file_storage_domain}{pypi_path[0]}"
    return canonical_url


def pypi_url() -> str:
    """The address of PyPI, uv's default index, which pip knows. Raises ToolMissing without pip."""
    pypi = _pypi()
    if pypi is None:
        raise ToolMissing(
            "pip is missing; provision reads the address of PyPI from it.", advice="Install pip."
        )
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
