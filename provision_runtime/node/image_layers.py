"""Divides an environment into the layers of its image. The Dockerfile runs it in its first stage.

    python image_layers.py PREFIX FOLDER GROUP...

Moves the files of PREFIX to FOLDER/NAME for each group, and the rest to FOLDER/python. A GROUP is JSON: its
`name`, patterns of `conda` packages and of `wheels`, and `at_least`, the bytes that a package must have. A
package belongs to the first that matches. Needs the standard library alone.
"""

from __future__ import annotations

import csv
import fnmatch
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REST = "python"


def divide(prefix: Path, folder: Path, groups: list[dict[str, Any]]) -> None:
    """Move a prefix's files into a folder for each group."""
    for group in groups:
        (folder / group["name"]).mkdir(parents=True)
    for kind, name, listed in list(_packages(prefix)):
        # Another package may have taken a file that several list. A wheel may list files elsewhere.
        inside = [file for file in listed if not file.startswith(("/", ".."))]
        files = [file for file in inside if os.path.lexists(prefix / file)]
        size = sum((prefix / file).lstat().st_size for file in files)
        for group in groups:
            patterns = group[kind]
            if size >= group["at_least"] and any(fnmatch.fnmatchcase(name, it) for it in patterns):
                for file in files:
                    target = folder / group["name"] / file
                    target.parent.mkdir(parents=True, exist_ok=True)
                    (prefix / file).rename(target)
                break
    prefix.rename(folder / REST)


def _packages(prefix: Path) -> Iterator[tuple[str, str, list[str]]]:
    """The kind, name and files of each package, by the records of conda and of wheels."""
    of_conda = set()
    for path in sorted(prefix.glob("conda-meta/*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        of_conda.update(record["files"])
        yield "conda", record["name"], [*record["files"], f"conda-meta/{path.name}"]
    for path in sorted(prefix.glob("lib/python*/site-packages/*.dist-info/RECORD")):
        site_packages = path.parent.parent.relative_to(prefix)
        if str(path.relative_to(prefix)) not in of_conda:
            rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
            name = re.sub(r"[-_.]+", "-", path.parent.name.split("-")[0]).lower()
            yield "wheels", name, [os.path.normpath(site_packages / row[0]) for row in rows if row]


if __name__ == "__main__":
    divide(Path(sys.argv[1]), Path(sys.argv[2]), list(map(json.loads, sys.argv[3:])))
