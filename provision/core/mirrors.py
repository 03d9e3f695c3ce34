"""Where files are read from. A lock names every file by its canonical URL, that of its channel or
index. A mirror is configuration: it says where to read the files under a canonical URL, and never
enters a lock.

This module holds the settings and translates URLs in both directions. It downloads nothing and
knows no URL itself: the caller says which URL a channel's name stands for (rattler knows).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from provision.core.credentials import without_login
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError, InvalidSpec, Unreachable
from provision.core.schema import InvalidDocument, parse_document

ALL_CHANNELS = "*"  # as a name: every channel that is known by its name only
PACKAGE_INDEX = "pypi"  # as a name: the package index that uv uses by default
MANIFEST = "mirror.json"  # in the folders that `channel mirror` makes
SIMPLE = "simple"
SCHEMES = ("http", "https", "file", "s3", "oci")
_SYNTAX = (
    f"Write NAME_OR_URL=URL (NAME: a channel, `{ALL_CHANNELS}` for all channel names, or "
    f"`{PACKAGE_INDEX}`), or a folder that `channel mirror` made."
)


@frozen
class MirrorSetting:
    """One mirror as it was configured: NAME_OR_URL=URL, or the URL of a mirror folder, which stands
    for everything."""

    name: str | None  # None: a mirror folder
    url: str


class _Translations(NamedTuple):
    """The settings with every name as a URL, and the content of every mirror folder.

    prefixes: files below the canonical URL are read below the other one; both end with a slash.
    wheels: of mirror folders, by hash: the canonical URL and the other one.
    """

    prefixes: list[tuple[str, str]]
    wheels: dict[str, tuple[str, str]]


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
    def folders(self) -> tuple[str, ...]:
        """The URLs of mirror folders."""
        return tuple(setting.url for setting in self._settings if setting.name is None)

    @property
    def is_closed(self) -> bool:
        """Whether everything comes from mirror folders: nothing else is read."""
        return bool(self.folders)

    @property
    def indexes(self) -> tuple[str, ...]:
        """The package indexes of the folders."""
        return tuple(f"{folder}{SIMPLE}/" for folder in self.folders)

    @property
    def index(self) -> str | None:
        """The URL to use instead of the default package index."""
        for setting in self._settings:
            if setting.name == PACKAGE_INDEX:
                return setting.url.rstrip("/")
        return None

    def actual_url(self, url: str, sha256: str = "") -> str:
        """Where to read what a lock names by `url`. Raises Unreachable if mirror folders stand for
        everything and do not hold it."""
        if not self._settings:
            return url
        prefixes, wheels = self._translations
        by_url = dict(wheels.values())
        if url in by_url or sha256 in wheels:
            return by_url.get(url) or wheels[sha256][1]
        fitting = [prefix for prefix in prefixes if url.startswith(prefix[0])]
        if fitting:
            canonical, actual = max(fitting, key=lambda prefix: len(prefix[0]))
            return actual + url[len(canonical) :]
        is_local = url.startswith("file:") and path_from_url(url).exists()
        if self.is_closed and not is_local:
            raise Unreachable(
                f"{' and '.join(self.folders)} does not hold {url}.",
                advice="`provision channel mirror NAME DIR` adds what a lock needs; or leave out "
                "--mirror.",
            )
        return url

    def canonical_url(self, url: str, sha256: str = "") -> str:
        """The URL by which a lock names what is at `url`."""
        if not self._settings:
            return url
        prefixes, wheels = self._translations
        if sha256 in wheels:
            return wheels[sha256][0]
        # uv leaves a login out of the URLs that an index gave it, rattler does not.
        plain_url = without_login(url)
        plain = [(without_login(actual), canonical) for canonical, actual in prefixes]
        fitting = [prefix for prefix in plain if plain_url.startswith(prefix[0])]
        if not fitting:
            return url
        actual, canonical = max(reversed(fitting), key=lambda prefix: len(prefix[0]))
        return canonical + plain_url[len(actual) :]

    @cached_property
    def _translations(self) -> _Translations:
        translations = _Translations([], {})
        for name, url in ((setting.name, setting.url) for setting in self._settings):
            if name is None:
                _read_folder(self._manifest(url), url, translations)
            elif name != PACKAGE_INDEX:
                canonical = name if "://" in name else self._channel_url(name)
                translations.prefixes.append((canonical.rstrip("/") + "/", url))
        return translations


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
    that has it.

    A mirror folder stands for everything, so sources weaker than the one that has it do not count.
    """
    settings: dict[str, MirrorSetting] = {}
    for source in sources:
        names = [setting.name for setting in source if setting.name is not None]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise InvalidSpec(f"{', '.join(duplicates)} is given two mirrors.", advice="Name one.")
        for setting in source:
            settings.setdefault(setting.name or f"folder {setting.url}", setting)
        if any(setting.name is None for setting in source):
            break
    return tuple(settings.values())


def _read_folder(text: str, folder: str, translations: _Translations) -> None:
    """Add the content of a mirror folder, by its manifest, whose schema allows no path that leads out
    of it. Raises IntegrityError if the text is no manifest."""
    from urllib.parse import quote

    try:
        content = parse_document(text, "mirror")
    except InvalidDocument as error:
        raise IntegrityError(
            f"{folder}{MANIFEST} is not the manifest of a mirror: {error}.",
            advice="Make the folder again: provision channel mirror.",
        ) from error
    for canonical, path in content["channels"].items():
        translations.prefixes.append((canonical, folder + quote(path)))
    for sha256, row in content["wheels"].items():
        translations.wheels[sha256] = (row["url"], folder + quote(row["path"]))
