"""Where files are read from. A lock names every file by its canonical URL, that of its channel or
index. A mirror is configuration: it says where to read the files under a canonical URL, and never
enters a lock.

This module holds the settings and translates URLs in both directions. It downloads nothing and
knows no URL itself: the caller says which URL a channel's name stands for (rattler knows).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlsplit

from provision.core.credentials import without_login
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError, InvalidSpec

ALL_CHANNELS = "*"  # as a name: every channel that is known by its name only
PACKAGE_INDEX = "pypi"  # as a name: the package index that uv uses by default
# In the folders that `channel mirror` makes: the addresses below which they have files, these files,
# and a package index of the wheels.
MANIFEST, FILES, SIMPLE = "mirrors.txt", "files", "simple"
_LINE = rf"([a-z][a-z0-9+.-]*://\S*/)=({FILES}/\S+/)"
SCHEMES = ("http", "https", "file", "s3", "oci")
_SYNTAX = (
    f"Write NAME_OR_URL=URL (NAME: a channel, `{ALL_CHANNELS}` for all channel names, or "
    f"`{PACKAGE_INDEX}`), or a folder that `channel mirror` made."
)


@frozen
class MirrorSetting:
    """One mirror as it was configured: NAME_OR_URL=URL, or the URL of a mirror folder, which is one of
    several addresses and of the package index."""

    name: str | None  # None: a mirror folder
    url: str


class Mirrors:
    """Every mirror of this run. Names are looked up and folders read at first use: most verbs never
    need them."""

    def __init__(
        self,
        settings: Iterable[MirrorSetting] = (),
        *,
        channel_url: Callable[[str], str] = str,
        manifest: Callable[[str], str] = str,
    ) -> None:
        """channel_url: gives the canonical URL of a channel's name (for `*`: the URL under which
        all names are). manifest: gives the text of the manifest of the folder with this URL."""
        self._settings = tuple(settings)
        self._channel_url, self._manifest = channel_url, manifest

    @property
    def index(self) -> str | None:
        """The URL to use instead of the default package index."""
        for setting in self._settings:
            if setting.name is None:
                return f"{setting.url}{SIMPLE}"
            if setting.name == PACKAGE_INDEX:
                return setting.url.rstrip("/")
        return None

    def actual_url(self, url: str) -> str:
        """Where to read what a lock names by `url`."""
        fitting = [prefix for prefix in self._prefixes if url.startswith(prefix[0])]
        if not fitting:
            return url
        canonical, actual = max(fitting, key=lambda prefix: len(prefix[0]))
        return actual + url[len(canonical) :]

    def canonical_url(self, url: str) -> str:
        """The URL by which a lock names what is at `url`."""
        # uv leaves a login out of the URLs that an index gave it, rattler does not.
        plain_url = without_login(url)
        plain = [(without_login(actual), canonical) for canonical, actual in self._prefixes]
        fitting = [prefix for prefix in plain if plain_url.startswith(prefix[0])]
        if not fitting:
            return url
        actual, canonical = max(reversed(fitting), key=lambda prefix: len(prefix[0]))
        return canonical + plain_url[len(actual) :]

    @cached_property
    def _prefixes(self) -> list[tuple[str, str]]:
        """Files below the first URL are read below the second one; both end with a slash."""
        prefixes: list[tuple[str, str]] = []
        for name, url in ((setting.name, setting.url) for setting in self._settings):
            if name is None:
                prefixes += _prefixes_of_folder(self._manifest(url), url)
            elif name != PACKAGE_INDEX:
                canonical = name if "://" in name else self._channel_url(name)
                prefixes.append((canonical.rstrip("/") + "/", url))
        return prefixes


NO_MIRRORS = Mirrors()


def parse_mirror(text: str, directory: Path) -> MirrorSetting:
    """Parse NAME_OR_URL=URL or DIR. directory: where a relative path starts."""
    name, separator, url = text.partition("=")
    # A path may hold `=`, too: then a slash comes before it that is not part of a URL's `://`.
    if not separator or "/" in name.partition("://")[0]:
        return MirrorSetting(name=None, url=_folder_url(text.strip(), directory))
    if not name.strip() or not url.strip():
        raise InvalidSpec(f"`{text}` is not a mirror.", advice=_SYNTAX)
    return MirrorSetting(name=name.strip(), url=_folder_url(url.strip(), directory))


def _folder_url(text: str, directory: Path) -> str:
    """A URL that ends with a slash, from a URL or a path."""
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", text):
        scheme, host, path, *_ = urlsplit(text)
        has_location = host or (scheme.lower() == "file" and path)
        if scheme.lower() not in SCHEMES or not has_location:
            raise InvalidSpec(
                f"`{text}` is not the URL of a mirror.",
                advice=f"Known: {', '.join(SCHEMES)}, or a path.",
            )
        return text.rstrip("/") + "/"
    if not text:
        raise InvalidSpec("A mirror has no URL.", advice=_SYNTAX)
    return (directory / Path(text).expanduser()).absolute().as_uri().rstrip("/") + "/"


def path_from_url(url: str) -> Path:
    """The path of a file: URL."""
    from urllib.request import url2pathname

    return Path(url2pathname(urlsplit(url).path))


def merge_settings(*sources: Sequence[MirrorSetting]) -> tuple[MirrorSetting, ...]:
    """The settings in force, strongest source first: for each name, the one of the strongest source
    that has it."""
    settings: dict[str, MirrorSetting] = {}
    for source in sources:
        names = [setting.name for setting in source if setting.name is not None]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise InvalidSpec(f"{', '.join(duplicates)} is given two mirrors.", advice="Name one.")
        for setting in source:
            settings.setdefault(setting.name or f"folder {setting.url}", setting)
    return tuple(settings.values())


def _prefixes_of_folder(text: str, folder: str) -> Iterator[tuple[str, str]]:
    """What a mirror folder stands for. Raises IntegrityError for a line that is not of such a folder,
    or that leads out of it."""
    for line in text.splitlines():
        match = re.fullmatch(_LINE, line)
        if match is None or not {"..", "."}.isdisjoint(unquote(match[2]).split("/")):
            raise IntegrityError(
                f"{folder}{MANIFEST} is not of a mirror folder: {line[:80]!r}.",
                advice="Make the folder again: provision channel mirror.",
            )
        yield match[1], folder + match[2]
