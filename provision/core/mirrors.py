"""Where files are read from. A lock names every file by its canonical URL, that of its channel or
index. A mirror is configuration: it says where to read the files under a canonical URL, and never
enters a lock.

This module holds the settings and translates URLs in both directions. It downloads nothing and
knows no URL itself: the caller says which URL a channel's name stands for (rattler knows).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from provision.core.credentials import without_login
from provision.core.dataclass import dataclass
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


@dataclass(frozen=True, kw_only=True)
class MirrorSetting:
    """One mirror as it was configured: NAME_OR_URL=URL, or the URL of a mirror folder, which stands
    for everything."""

    name: str | None  # None: a mirror folder
    url: str


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """Files below `canonical` are read below `url`. Both end with a slash."""

    canonical: str
    url: str


@dataclass(frozen=True, kw_only=True)
class MirroredWheel:
    """A wheel of a mirror folder."""

    sha256: str
    canonical: str
    url: str


@dataclass(frozen=True, kw_only=True)
class _Translations:
    """The settings with every name as a URL, and the content of every mirror folder."""

    mirrors: tuple[Mirror, ...]
    wheels: tuple[MirroredWheel, ...]

    @cached_property
    def wheel_by_url(self) -> Mapping[str, MirroredWheel]:
        return {wheel.canonical: wheel for wheel in self.wheels}

    @cached_property
    def wheel_by_hash(self) -> Mapping[str, MirroredWheel]:
        return {wheel.sha256: wheel for wheel in self.wheels}


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
        translations = self._translations
        wheel = translations.wheel_by_url.get(url) or translations.wheel_by_hash.get(sha256)
        if wheel is not None:
            return wheel.url
        mirrors = [mirror for mirror in translations.mirrors if url.startswith(mirror.canonical)]
        if mirrors:
            most_specific = max(mirrors, key=lambda mirror: len(mirror.canonical))
            return most_specific.url + url[len(most_specific.canonical) :]
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
        wheel = self._translations.wheel_by_hash.get(sha256)
        if wheel is not None:
            return wheel.canonical
        # uv leaves a login out of the URLs that an index gave it, rattler does not.
        plain_url = without_login(url)
        longest = ""
        canonical = url
        for mirror in self._translations.mirrors:
            prefix = without_login(mirror.url)
            if plain_url.startswith(prefix) and len(prefix) >= len(longest):
                longest = prefix
                canonical = mirror.canonical + plain_url[len(prefix) :]
        return canonical

    @cached_property
    def _translations(self) -> _Translations:
        mirrors: list[Mirror] = []
        wheels: list[MirroredWheel] = []
        for setting in self._settings:
            if setting.name is None:
                folder_mirrors, folder_wheels = read_manifest(
                    self._manifest(setting.url), setting.url
                )
                mirrors += folder_mirrors
                wheels += folder_wheels
            elif setting.name != PACKAGE_INDEX:
                is_url = "://" in setting.name
                canonical = setting.name if is_url else self._channel_url(setting.name)
                mirrors.append(Mirror(canonical=canonical.rstrip("/") + "/", url=setting.url))
        return _Translations(mirrors=tuple(mirrors), wheels=tuple(wheels))


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


def read_manifest(text: str, folder: str) -> tuple[list[Mirror], list[MirroredWheel]]:
    """The content of a mirror folder, by its manifest. Raises IntegrityError if the text is no
    manifest."""
    try:
        content = parse_document(text, "mirror")
    except InvalidDocument as error:
        raise IntegrityError(
            f"{folder}{MANIFEST} is not the manifest of a mirror: {error}.",
            advice="Make the folder again: provision channel mirror.",
        ) from error
    mirrors = [
        Mirror(canonical=canonical, url=_url_in(folder, path))
        for canonical, path in content["channels"].items()
    ]
    wheels = [
        MirroredWheel(sha256=sha256, canonical=row["url"], url=_url_in(folder, row["path"]))
        for sha256, row in content["wheels"].items()
    ]
    return mirrors, wheels


def _url_in(folder: str, path: str) -> str:
    """The URL of a path in a folder; the schema allows none that leads out of it."""
    from urllib.parse import quote

    return folder + quote(path)
