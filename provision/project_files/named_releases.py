"""Where a repository names a release of PyTorch, outside of the files that are read."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from provision.core.credentials import public_request
from provision.core.paths import SPEC
from provision.project_files.rules import table

MENTIONS_LIMIT = 1 << 20  # bytes of a file


def named_releases(folder: Path, read: Collection[str]) -> Iterator[str]:
    """Lines that name a release of PyTorch, in files of a folder that are not read: `FILE:LINE TEXT`.

    Looks two folders down, into files of the kinds that install things.
    """
    rules = table("mentions")
    for parent, folders, names in os.walk(folder):
        path = Path(parent)
        depth = len(path.relative_to(folder).parts)
        folders[:] = [
            name
            for name in sorted(folders)
            if depth < 2
            and (not name.startswith(".") or name in rules["hidden"])
            and name not in rules["foreign"]
            and not (path / name / SPEC).exists()
        ]
        for name in sorted(names):
            relative = str((path / name).relative_to(folder))
            patterns = [rule for rule in rules["files"] if fnmatch.fnmatch(name, rule)]
            is_history = any(fnmatch.fnmatch(name.upper(), rule) for rule in rules["history"])
            if relative not in read and patterns and not is_history and (path / name).is_file():
                content = _beginning(path / name)
                for number, line in enumerate(content.splitlines(), 1):
                    release = re.search(rules["release"], line)
                    if release and re.search(rules["files"][patterns[0]], line):
                        text = line[max(release.start() - 50, 0) : release.end() + 30]
                        yield f"{relative}:{number} {public_request(text.strip())}"


def _beginning(path: Path) -> str:
    """The beginning of a file's text; empty if this user may not read it."""
    try:
        with path.open("rb") as file:
            return file.read(MENTIONS_LIMIT).decode(errors="replace")
    except OSError:
        return ""
