"""Where bytes really come from. Locks name every file by its canonical address, its channel's or index's own; a mirror is
configuration that says from where to fetch what lies under such an address, and never enters a lock.

This module reads what was configured and translates addresses in both directions. It fetches nothing and knows no address itself:
which address a channel's name stands for is the caller's to say (rattler knows).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from provision.core.errors import IntegrityError, InvalidSpec, Unreachable

ALL_CHANNELS = "*"  # as a name: every channel that is known by its name alone
PACKAGE_INDEX = "pypi"  # as a name: the package index that uv takes by default
MANIFEST = "mirror.json"  # what makes a folder one that `channel mirror` made
SIMPLE = "simple"
SCHEMES = ("http", "https", "file", "s3", "oci")


@dataclass(frozen=True, kw_only=True)
class MirrorSetting:
    """One mirror as it was asked for: NAME_OR_URL=URL; or the address of a folder of ours alone, which stands for everything."""

    what: str | None
    url: str


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """What lies under `canonical` is fetched from under `url`. Both end with a slash."""

    canonical: str
    url: str


@dataclass(frozen=True, kw_only=True)
class MirroredWheel:
    """A wheel of a folder of ours."""

    sha256: str
    canonical: str
    url: str


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What was asked for, with every name as an address and every folder's content read."""

    pairs: tuple[Mirror, ...] = ()
    wheels: tuple[MirroredWheel, ...] = ()

    @functools.cached_property
    def by_canonical(self) -> Mapping[str, MirroredWheel]:
        return {wheel.canonical: wheel for wheel in self.wheels}

    @functools.cached_property
    def by_hash(self) -> Mapping[str, MirroredWheel]:
        return {wheel.sha256: wheel for wheel in self.wheels}


class Mirrors:
    """Every mirror of this run. What names and folders stand for is asked at first use: most verbs never need it."""

    def __init__(
        self,
        wanted: Iterable[MirrorSetting] = (),
        *,
        channel_url: Callable[[str], str] = str,
        manifest: Callable[[str], str] = str,
    ) -> None:
        """channel_url: the canonical address of a channel's name (of `*`: what all names are looked up under).
        manifest: the text of the manifest of the folder with this address."""
        self._wanted = tuple(wanted)
        self._channel_url, self._manifest = channel_url, manifest

    @property
    def folders(self) -> tuple[str, ...]:
        """Addresses of folders of ours."""
        return tuple(one.url for one in self._wanted if one.what is None)

    @property
    def is_closed(self) -> bool:
        """Whether all there is comes from folders of ours: no network is needed, and none is tried."""
        return bool(self.folders)

    @property
    def indexes(self) -> tuple[str, ...]:
        """The package indexes of the folders."""
        return tuple(f"{folder}{SIMPLE}/" for folder in self.folders)

    @property
    def index(self) -> str | None:
        """What is asked instead of the default package index."""
        return next(
            (one.url.rstrip("/") for one in self._wanted if one.what == PACKAGE_INDEX), None
        )

    def actual_url(self, url: str, sha256: str = "") -> str:
        """From where to fetch what a lock names by `url`. Raises Unreachable if folders stand for everything and do not hold it."""
        if not self._wanted:
            return url
        if (
            wheel := self._known.by_canonical.get(url) or self._known.by_hash.get(sha256)
        ) is not None:
            return wheel.url
        pairs = [pair for pair in self._known.pairs if url.startswith(pair.canonical)]
        if pairs:
            best = max(pairs, key=lambda pair: len(pair.canonical))
            return best.url + url[len(best.canonical) :]
        if self.is_closed and not (url.startswith("file:") and path_from_url(url).exists()):
            raise Unreachable(
                f"{' and '.join(map(without_login, self.folders))} does not hold {without_login(url)}.",
                advice="`provision channel mirror NAME DIR` adds what a lock needs; or leave out --mirror.",
            )
        return url

    def canonical_url(self, url: str, sha256: str = "") -> str:
        """By which address a lock names what was found at `url`."""
        if not self._wanted:
            return url
        if (wheel := self._known.by_hash.get(sha256)) is not None:
            return wheel.canonical
        places = {without_login(pair.url): pair.canonical for pair in self._known.pairs}
        plain = without_login(
            url
        )  # uv leaves a login out of what an index told it, rattler does not
        if not (fitting := [place for place in places if plain.startswith(place)]):
            return url
        best = max(fitting, key=len)
        return places[best] + plain[len(best) :]

    @functools.cached_property
    def _known(self) -> _Known:
        pairs: list[Mirror] = []
        wheels: list[MirroredWheel] = []
        for one in self._wanted:
            if one.what is None:
                held, files = read_manifest(self._manifest(one.url), one.url)
                pairs += held
                wheels += files
            elif one.what != PACKAGE_INDEX:
                canonical = one.what if "://" in one.what else self._channel_url(one.what)
                pairs.append(Mirror(canonical=canonical.rstrip("/") + "/", url=one.url))
        return _Known(pairs=tuple(pairs), wheels=tuple(wheels))


NO_MIRRORS = Mirrors()


def parse_mirror(text: str, where: Path) -> MirrorSetting:
    """Read NAME_OR_URL=URL or DIR. where: the folder that a relative path starts from."""
    what, separator, url = text.partition("=")
    if separator and "/" not in what.partition("://")[0]:
        if not what.strip() or not url.strip():
            raise InvalidSpec(f"`{without_login(text)}` is not a mirror.", advice=_SYNTAX)
        return MirrorSetting(what=what.strip(), url=_folder_url(url.strip(), where))
    return MirrorSetting(what=None, url=_folder_url(text.strip(), where))


_SYNTAX = (
    f"Write NAME_OR_URL=URL (NAME: a channel, `{ALL_CHANNELS}` for all channel names, or "
    f"`{PACKAGE_INDEX}`), or a folder that `channel mirror` made."
)


def _folder_url(text: str, where: Path) -> str:
    """An address that ends with a slash, from an address or a path."""
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", text):
        scheme, host, path, *_ = urlsplit(text)
        if scheme.lower() not in SCHEMES or not (host or (scheme.lower() == "file" and path)):
            raise InvalidSpec(
                f"`{without_login(text)}` is not an address of a mirror.",
                advice=f"Known: {', '.join(SCHEMES)}, or a path.",
            )
        return text.rstrip("/") + "/"
    if not text:
        raise InvalidSpec("A mirror has no address.", advice=_SYNTAX)
    return (where / Path(text).expanduser()).absolute().as_uri().rstrip("/") + "/"


def path_from_url(url: str) -> Path:
    """The path that a file: address names."""
    from urllib.request import url2pathname

    return Path(url2pathname(urlsplit(url).path))


def without_login(text: str) -> str:
    """Addresses without user names and passwords: what may be shown, or stand in a file."""
    return re.sub(r"://[^/\s]*@", "://", text)  # a user's name may be an address with @, too


def without_credentials(text: str) -> str:
    """The same without the tokens that channels take in their paths, /t/TOKEN/."""
    return re.sub(r"/t/[^/\s]+(?=/|$)", "", without_login(text))


def merge_settings(*sources: Sequence[MirrorSetting]) -> tuple[MirrorSetting, ...]:
    """What holds of what was asked for, strongest source first: each mirrored thing by the strongest that names it, and a folder of
    ours, which stands for everything, alone with what was asked for beside it."""
    found: dict[str, MirrorSetting] = {}
    for source in sources:
        named = [one.what for one in source if one.what is not None]
        if twice := sorted({what for what in named if named.count(what) > 1}):
            raise InvalidSpec(f"{', '.join(twice)} is given two mirrors.", advice="Name one.")
        for one in source:
            found.setdefault(one.what or f"folder {one.url}", one)
        if any(one.what is None for one in source):
            break
    return tuple(found.values())


def read_manifest(text: str, folder: str) -> tuple[list[Mirror], list[MirroredWheel]]:
    """What a folder of ours holds, with addresses in it. Raises IntegrityError for what is no such manifest."""
    try:
        content = json.loads(text)
        if content["schema"] != 1:
            raise IntegrityError(
                f"{without_login(folder)}{MANIFEST} is of schema {content['schema']}; this reads schema 1."
            )
        pairs = [
            Mirror(canonical=name, url=_inside(folder, path))
            for name, path in content["channels"].items()
        ]
        wheels = [
            MirroredWheel(sha256=sha256, canonical=row["url"], url=_inside(folder, row["path"]))
            for sha256, row in content["wheels"].items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError(
            f"{without_login(folder)}{MANIFEST} is not the manifest of a mirror: {type(error).__name__}.",
            advice="Make the folder again: provision channel mirror.",
        ) from error
    return pairs, wheels


def _inside(folder: str, path: str) -> str:
    """An address within the folder, and nowhere else."""
    from urllib.parse import quote

    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"{path} leads out of the folder")
    return folder + quote(path)
