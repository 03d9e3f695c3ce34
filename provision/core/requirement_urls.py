"""Requirements with an address (PEP 508: `name @ URL`), and what such addresses are.

In spec.yml an address may be relative to the environment's folder: `name @ file:wheels/x.whl` is a
wheel there, and `name @ file:../../mypkg` a folder that is installed as an editable.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

GIT = "git+"
# How the lock marks a folder that is installed as an editable.
EDITABLE = "#editable"
_RELATIVE = re.compile(r"(@\s*)file:(?!/)([^\s;]+)")
_COMMIT = re.compile(r"git\+[^\s]+@[0-9a-f]{40}(#subdirectory=[^\s]+)?")


def absolute_requirement(text: str, folder: Path) -> str:
    """The requirement with its file, if it has one, as an absolute address."""
    return _RELATIVE.sub(lambda match: match[1] + absolute_url(f"file:{match[2]}", folder), text)


def absolute_url(url: str, folder: Path) -> str:
    """An address of a lock in `folder`, absolute if it is one of a file."""
    if not url.startswith("file:") or url.startswith("file:/"):
        return url
    path, mark, fragment = url.removeprefix("file:").partition("#")
    return f"{Path(os.path.normpath(folder.absolute() / path)).as_uri()}{mark}{fragment}"


def relative_url(url: str, folder: Path) -> str:
    """The address as the lock in `folder` has it: of a file below the folder, relative to it."""
    prefix = f"{folder.absolute().as_uri()}/"
    return f"file:{url.removeprefix(prefix)}" if url.startswith(prefix) else url


def is_commit(url: str) -> bool:
    """Whether this is one commit of a git repository, which needs no other hash."""
    return _COMMIT.fullmatch(url) is not None


def is_source(url: str) -> bool:
    """Whether there is no file with a hash: a git repository, or an editable folder."""
    return url.startswith(GIT) or url.endswith(EDITABLE)
