"""Settings of a user, a lab or a site: files in the configuration folder, and the variables that
stand for options.

A file has `mirrors:` with a list of what `--mirror` takes, and folders: `data:`, `cache:`, `tmp:`
and `envs:`. Relative paths start from the file's folder. `provision join` writes the lab's file.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypedDict, cast, get_args

from provision.core.errors import InvalidSpec
from provision.core.mirrors import (
    MirrorSetting,
    merge_settings,
    parse_mirror,
)
from provision.core.schema import schema_error
from provision.core.yaml_text import YamlError, parse_yaml, read_source

FILE = "settings.yml"
# What `provision join` writes from a lab's lab.yml. The user's own file has precedence.
JOINED = "joined.yml"
CONFIG = "PROVISION_CONFIG"
MIRRORS = "PROVISION_MIRRORS"
# data, cache: as PROVISION_DATA and PROVISION_CACHE. tmp: for temporary files, if it exists. envs:
# the environments, where the working folder has none.
FolderKey = Literal["data", "cache", "tmp", "envs"]
FOLDER_KEYS: tuple[FolderKey, ...] = get_args(FolderKey)
KEYS = ("mirrors", "smoke", "sync", "facts", *FOLDER_KEYS)


class FactsSettings(TypedDict, total=False):
    """Where `provision facts update` reads, and what shows that it is genuine: the hash, or a file of
    those who may sign (ssh-keygen's ALLOWED SIGNERS)."""

    address: str
    sha256: str
    signers: str


class Settings(TypedDict, total=False):
    """settings.schema.json."""

    mirrors: list[str] | None
    smoke: list[str] | None
    sync: bool
    facts: FactsSettings
    data: str
    cache: str
    tmp: str
    envs: str


def mirror_settings(options: Sequence[str]) -> tuple[MirrorSetting, ...]:
    """Mirrors from the command line, else from variables, else from the user's file, else from the
    site's.

    options: values of --mirror.
    """
    try:
        # Quotes as in a shell keep a folder's spaces.
        tokens = shlex.split(os.environ.get(MIRRORS, ""))
    except ValueError as error:
        raise InvalidSpec(
            f"{MIRRORS} has {str(error).lower()}.",
            advice=f"Quote a folder with spaces: {MIRRORS}=\"'*=/a b' pypi=URL\".",
        ) from None
    sources = [(options, Path.cwd()), (tokens, Path.cwd())]
    sources += [(file.get("mirrors") or (), path.parent) for path, file in _contents()]
    return merge_settings(
        *([parse_mirror(text, folder) for text in texts] for texts, folder in sources)
    )


def settings_files() -> tuple[Path, ...]:
    """The existing settings files: the user's, the joined lab's, the site's; PROVISION_CONFIG names
    the one to use instead."""
    paths = possible_files()
    if os.environ.get(CONFIG) and not paths[0].is_file():
        raise InvalidSpec(f"{paths[0]}, which {CONFIG} names, does not exist.")
    return tuple(path for path in paths if path.is_file())


def possible_files() -> tuple[Path, ...]:
    """The same, whether they exist or not."""
    if named := os.environ.get(CONFIG):
        return (Path(named).absolute(),)
    site = os.environ.get("XDG_CONFIG_DIRS", "").split(":")[0] or "/etc/xdg"
    own = xdg_folder("CONFIG") / "provision" / FILE
    return own, joined_file(), Path(site, "provision", FILE)


def joined_file() -> Path:
    """The settings of the lab that this user joined."""
    return xdg_folder("CONFIG") / "provision" / JOINED


def xdg_folder(kind: Literal["CONFIG", "DATA", "CACHE"]) -> Path:
    """The folder in which programs keep what is this user's, as the XDG base directory specification
    says: a relative path counts as none."""
    folder = Path(os.environ.get(f"XDG_{kind}_HOME", ""))
    if folder.is_absolute():
        return folder
    default = {"CONFIG": ".config", "DATA": ".local/share", "CACHE": ".cache"}[kind]
    return Path(os.path.expanduser("~"), default)  # noqa: PTH111


def folder_settings(without: Path | None = None) -> dict[str, Path]:
    """The folders that settings files name, by key; the first file that names one decides.

    without: a file to leave out.
    """
    chosen: dict[str, Path] = {}
    for path, content in _contents(without):
        for key in FOLDER_KEYS:
            if key in content and key not in chosen:
                try:
                    chosen[key] = folder_path(content[key], path.parent)
                except ValueError as error:
                    raise InvalidSpec(
                        f"{path}: `{key}` does not name a folder: {error}.",
                        advice=f"Write `{key}: /scratch/{{user}}/provision`, for instance.",
                    ) from error
    return chosen


def folder_path(text: str, folder: Path) -> Path:
    """A folder as settings and lab.yml write it: `~` and `{user}` are replaced, and a relative
    path starts from `folder`. Raises ValueError for another word in braces, for `~NAME` of an
    unknown user, and for characters that cannot be printed."""
    if re.search(r"[{}]", text.replace("{user}", "")):
        raise ValueError(f"`{text}`: {{user}} is the only name that may be in braces")
    if not text.isprintable():
        raise ValueError(f"{text!r} has a character that no folder's name should have")
    filled = Path(text.replace("{user}", getpass.getuser()))
    try:
        return (folder / filled.expanduser()).absolute()
    except RuntimeError as error:  # `~name`
        raise ValueError(f"`{text}`: {error}") from error


def apply_folders() -> None:
    """Set the variables that say where temporary files and uv's cache go, for this process and its
    children. A variable that is set stays."""
    folders = folder_settings()
    tmp, cache = folders.get("tmp"), folders.get("cache")
    if tmp is not None and tmp.is_dir() and not os.environ.get("TMPDIR"):
        import tempfile

        os.environ["TMPDIR"] = str(tmp)
        tempfile.tempdir = None  # it is looked up again
    if cache is not None and not os.environ.get("UV_CACHE_DIR"):
        os.environ["UV_CACHE_DIR"] = str(cache / "uv")


def _contents(without: Path | None = None) -> Iterator[tuple[Path, Settings]]:
    """The settings files with their contents. Raises InvalidSpec."""
    for path in settings_files():
        if path == without:
            continue
        try:
            content = parse_yaml(read_source(path)) or {}
        except YamlError as error:
            raise InvalidSpec(error.in_file(path)) from error
        problem = schema_error(content, "settings")
        if problem:
            raise InvalidSpec(f"{path}: {problem}.", advice=f"Its keys: {', '.join(KEYS)}.")
        yield path, cast(Settings, content)


def smoke_settings() -> tuple[str, ...]:
    """Settings of the smoke test, KEY=VALUE, from all files: those of the user last, since the last
    one of a key decides."""
    lists = [content.get("smoke") or () for _, content in _contents()]
    return tuple(text for texts in reversed(lists) for text in texts)


def is_synced() -> bool:
    """Whether commands bring the environment that they enter up to date first: as the first file says
    that has `sync`."""
    return next((file["sync"] for _, file in _contents() if "sync" in file), False)


def facts_settings() -> FactsSettings:
    """Those of the first file that has them, paths absolute."""
    for path, content in _contents():
        if "facts" in content:
            return absolute_facts(content["facts"], path.parent)
    return {}


def absolute_facts(content: FactsSettings, folder: Path) -> FactsSettings:
    """The same with paths that start from a folder made absolute."""
    result = content.copy()
    for key in ("address", "signers"):
        if key in content and "://" not in content[key]:
            result[key] = str((folder / Path(content[key]).expanduser()).absolute())
    return result
