"""Requirements with an address (PEP 508: `name @ URL`), and what such addresses are.

In spec.yml an address may be relative to the environment's folder: `name @ file:wheels/x.whl` is a
wheel there, and `name @ file:../../mypkg` a folder that is installed as an editable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

GIT = "git+"
# How the lock marks a folder that is installed as an editable.
EDITABLE = "#editable"
_RELATIVE = r"(@\s*)file:(?!/)([^\s;]+)"
_COMMIT = r"git\+[^\s]+@[0-9a-f]{40}(#subdirectory=[^\s]+)?"


def absolute_requirement(text: str, folder: Path) -> str:
    """The requirement with its file, if it has one, as an absolute address."""
    return re.sub(
        _RELATIVE, lambda match: match[1] + absolute_url(f"file:{match[2]}", folder), text
    )


def absolute_url(url: str, folder: Path) -> str:
    """An address of a lock in `folder`, absolute if it is one of a file."""
    if not url.startswith("file:") or url.startswith("file:/"):
        return url
    path, mark, fragment = url.removeprefix("file:").partition("#")
    located = Path(os.path.normpath(folder.absolute() / unquote(path)))
    return f"{located.as_uri()}{mark}{fragment}"


def relative_url(url: str, folder: Path) -> str:
    """The address as the lock in `folder` has it: of a file below the folder, relative to it."""
    prefix = f"{folder.absolute().as_uri()}/"
    return f"file:{url.removeprefix(prefix)}" if url.startswith(prefix) else url


def source_packages(text: str) -> list[str]:
    """The packages of an item of `indexes` or `find_links` in spec.yml, by canonical names."""
    from packaging.utils import canonicalize_name

    packages, separator, _ = text.rpartition(": ")[2].partition("@ ")
    return [canonicalize_name(name) for name in re.split(r"[, ]+", packages) if name and separator]


def source_address(text: str, folder: Path = Path()) -> str:
    """The address of such an item. folder: that of spec.yml, at which a path starts."""
    address = text.rpartition("@ ")[2].rpartition(": ")[2].strip()
    is_path = address.startswith(("/", "./", "../"))
    return absolute_url(f"file:{address}" if is_path else address, folder)


def absolute_sources(texts: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Items after their key (`find_links: PACKAGES @ ADDRESS`), with absolute addresses."""
    sources = []
    for text in texts:
        key = text.partition(": ")[0]
        names = " ".join(source_packages(text))
        address = source_address(text, folder)
        sources.append(f"{key}: {names} @ {address}" if names else f"{key}: {address}")
    return tuple(sources)


def is_commit(url: str) -> bool:
    """Whether this is one commit of a git repository, which needs no other hash."""
    return re.fullmatch(_COMMIT, url) is not None


def is_source(url: str) -> bool:
    """Whether there is no file with a hash: a git repository, or an editable folder."""
    return url.startswith(GIT) or url.endswith(EDITABLE)
