"""What uv may take from its user's and site's configuration, and what it may not.

uv reads uv.toml, the working folder's pyproject.toml, and about a hundred variables. Some of them
say where packages come from and how to reach them: these are honored. Others change which versions
are chosen or where they are installed; an environment must not depend on the folder that a command
was started in, so uv never sees them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import quote

from provision.adapters.uv.build_environment import is_for_builds
from provision.core.credentials import without_credentials
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.toml_text import parse_toml

# Keys of uv.toml, top level or [pip], that say where packages are and how to reach them
# (docs.astral.sh/uv/reference/settings, uv 0.13).
HONORED_KEYS = (
    "allow-insecure-host",
    "cache-dir",
    "concurrent-builds",
    "concurrent-downloads",
    "concurrent-installs",
    "exclude-newer",
    "http-proxy",
    "https-proxy",
    "index-strategy",
    "keyring-provider",
    "native-tls",
    "no-cache",
    "no-proxy",
    "offline",
    "system-certs",
)
INDEX_KEYS = ("index", "index-url", "extra-index-url", "find-links")
# uv's variables of the same kind; `*` stands for any ending.
HONORED_VARIABLES = (
    "UV_CACHE_DIR",
    "UV_CONCURRENT_*",
    "UV_CREDENTIALS_DIR",
    "UV_EXCLUDE_NEWER",
    "UV_HTTP_*",
    "UV_INDEX_STRATEGY",
    "UV_INSECURE_HOST",
    "UV_KEYRING_PROVIDER",
    "UV_NATIVE_TLS",
    "UV_NO_CACHE",
    "UV_NO_PROGRESS",
    "UV_OFFLINE",
    "UV_REQUEST_TIMEOUT",
    "UV_SYSTEM_CERTS",
)
_LOGIN_VARIABLE = re.compile(r"UV_INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD)")
# A prefix of links into a cache breaks when the cache is cleaned.
LINK_MODES = ("clone", "copy", "hardlink")
# Variables that name indexes: we read them ourselves.
INDEX_VARIABLES = (
    "UV_DEFAULT_INDEX",
    "UV_INDEX_URL",
    "UV_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
)
# Variables whose value changes which versions are chosen; named in the output.
_DATING_VARIABLES = ("UV_EXCLUDE_NEWER", "UV_INDEX_STRATEGY", "UV_OFFLINE")


UvTable = Mapping[str, Any]  # as tomllib reads it: uv checks what it does not know


class IndexTable(TypedDict, total=False):
    """What provision reads in a table of `[[index]]`; its other keys are handed on to uv."""

    name: str
    url: str
    default: bool
    explicit: bool
    format: str  # flat: a page or folder that lists files


@frozen
class IndexSettings:
    """Where uv finds wheels, in the terms of uv.toml.

    indexes: tables of `[[index]]`. local: those on this machine's disk, used only if the others have
    no answer. best_match: the best version of all indexes, as pip
    does; uv by itself stops at the first index that has the name. further: other keys of uv.toml.
    origins: the settings that were taken over, and ignored: uv's that are left out, for people.
    """

    indexes: tuple[IndexTable, ...] = ()
    find_links: tuple[str, ...] = ()
    local: IndexSettings | None = None
    best_match: bool = False
    further: Mapping[str, object] = field(default_factory=dict)
    origins: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def with_local(self, local: IndexSettings) -> IndexSettings:
        """The same with the disk's locations, after the others."""
        return replace(
            self,
            indexes=(*self.indexes, *local.indexes),
            find_links=(*self.find_links, *local.find_links),
            local=None,
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
        import tomli_w

        content: dict[str, object] = dict(self.further)
        if self.best_match:
            content["index-strategy"] = "unsafe-best-match"
        if self.find_links:
            content["find-links"] = list(self.find_links)
        if self.indexes:
            content["index"] = [with_login(index, os.environ) for index in self.indexes]
        return tomli_w.dumps(content)


def read_uv_settings(environ: Mapping[str, str]) -> IndexSettings:
    """The honored settings of uv's variables, of the user's uv.toml and of the site's.

    Variables come before files. Raises InvalidSpec for a uv.toml that is not TOML.
    """
    indexes, find_links, origins = _from_variables(environ)
    further: dict[str, object] = {}
    ignored: list[str] = []
    for path in uv_files(environ):
        names: dict[str, bool] = {}  # whether a setting is honored
        for table in _setting_tables(path):
            file_indexes, file_links = _indexes_of(table, path.parent)
            indexes += file_indexes
            find_links += file_links
            for name, value in table.items():
                is_honored = name in HONORED_KEYS or (name == "link-mode" and value in LINK_MODES)
                if is_honored:
                    further.setdefault(name, value)
                if name != "pip":
                    names[name] = names.get(name, True) and (is_honored or name in INDEX_KEYS)
        for name in sorted(names):
            (origins if names[name] else ignored).append(f"{name} of {path}")
    # The first default wins, as for uv.
    defaults = [index for index in indexes if index.get("default")]
    return IndexSettings(
        indexes=tuple(index for index in indexes if index not in defaults or index is defaults[0]),
        find_links=tuple(find_links),
        further=further,
        origins=tuple(origins),
        ignored=(*ignored, *ignored_variables(environ)),
    )


def uv_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The existing uv.toml of the user, then those of the site; UV_CONFIG_FILE names one to use
    instead."""
    if environ.get("UV_NO_CONFIG"):
        return ()
    if environ.get("UV_CONFIG_FILE"):
        return (Path(environ["UV_CONFIG_FILE"]).absolute(),)
    user = environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    sites = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    candidates = [Path(user) / "uv" / "uv.toml"]
    candidates += [Path(site) / "uv" / "uv.toml" for site in sites if site]
    candidates.append(Path("/etc/uv/uv.toml"))
    return tuple(path for path in candidates if path.is_file())


def uv_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that uv may see, and with it the code that it runs to build packages: of its
    own those that are honored, but for logins."""
    variables = {}
    for name, value in environ.items():
        is_login = _LOGIN_VARIABLE.fullmatch(name) is not None
        is_visible = is_honored_variable(name, value) and not is_login
        if is_visible or is_for_builds(name):
            variables[name] = value
    return variables


def with_login(index: IndexTable, environ: Mapping[str, str]) -> IndexTable:
    """An index with the login of its variables in its address: uv reads UV_INDEX_NAME_USERNAME and
    UV_INDEX_NAME_PASSWORD."""
    name = re.sub(r"[^A-Z0-9]", "_", str(index.get("name", "")).upper())
    user, password = (environ.get(f"UV_INDEX_{name}_{token}") for token in ("USERNAME", "PASSWORD"))
    scheme, separator, rest = str(index["url"]).partition("://")
    if not name or not separator or (user is None and password is None):
        return index
    login = f"{quote(user or '', safe='')}:{quote(password or '', safe='')}"
    host, slash, path = rest.partition("/")
    return {**index, "url": f"{scheme}{separator}{login}@{host.rpartition('@')[2]}{slash}{path}"}


def is_honored_variable(name: str, value: str) -> bool:
    """Whether one of uv's own variables reaches uv."""
    if name == "UV_LINK_MODE":
        return value in LINK_MODES
    if _LOGIN_VARIABLE.fullmatch(name):
        return True
    return any(fnmatchcase(name, pattern) for pattern in HONORED_VARIABLES)


def ignored_variables(environ: Mapping[str, str]) -> list[str]:
    """uv's variables that are set and do not reach it."""
    own = ("UV_CONFIG_FILE", "UV_NO_CONFIG", *INDEX_VARIABLES)
    names = []
    for name, value in sorted(environ.items()):
        is_uv = name.startswith("UV_") and name not in own
        if is_uv and value and not is_honored_variable(name, value):
            names.append(name)
    return names


def _from_variables(
    environ: Mapping[str, str],
) -> tuple[list[IndexTable], list[str], list[str]]:
    """Indexes, find-links and the names of the variables that are set."""
    indexes: list[IndexTable] = [_named_index(text) for text in environ.get("UV_INDEX", "").split()]
    indexes.extend({"url": url} for url in environ.get("UV_EXTRA_INDEX_URL", "").split())
    default = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL")
    if default:
        indexes.append({**_named_index(default), "default": True})
    find_links = [
        _absolute(location, Path.cwd())
        for location in re.split(r"[\s,]+", environ.get("UV_FIND_LINKS", ""))
        if location
    ]
    names = [name for name in (*INDEX_VARIABLES, *_DATING_VARIABLES) if environ.get(name)]
    return indexes, find_links, names


def _named_index(text: str) -> IndexTable:
    """`URL` or `NAME=URL`, as uv's options take it."""
    name, separator, url = text.partition("=")
    if separator and re.fullmatch(r"[A-Za-z0-9._-]+", name):
        return {"name": name, "url": url}
    return {"url": text}


def _setting_tables(path: Path) -> list[UvTable]:
    """The [pip] section, which wins for `uv pip`, and the top level."""
    try:
        content = parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidSpec(
            f"uv's settings {path} cannot be read: {error}.",
            advice="Correct the file, or set UV_NO_CONFIG=1 to leave uv's settings out.",
        ) from error
    section = content.get("pip")
    return [section, content] if isinstance(section, dict) else [content]


def _indexes_of(table: UvTable, folder: Path) -> tuple[list[IndexTable], list[str]]:
    # An explicit index serves only the packages that a project assigns to it.
    indexes: list[IndexTable] = [
        entry | {"url": _absolute(str(entry["url"]), folder)}
        for entry in table.get("index", ())
        if not entry.get("explicit")
    ]
    indexes.extend({"url": _absolute(url, folder)} for url in table.get("extra-index-url", ()))
    if table.get("index-url"):
        indexes.append({"url": _absolute(table["index-url"], folder), "default": True})
    find_links = [_absolute(location, folder) for location in table.get("find-links", ())]
    return indexes, find_links


def _absolute(location: str, folder: Path) -> str:
    if "://" in location:
        return location
    return os.path.normpath(folder / Path(location).expanduser())
