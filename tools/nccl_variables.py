"""Writes provision_runtime/facts/nccl_variables.json: the environment variables of NCCL, by release.

    git clone --bare https://github.com/NVIDIA/nccl
    python tools/nccl_variables.py nccl.git

Reads the sources of each release at its tag: the variables of NCCL_PARAM and of getenv. Those of
plug-ins and of builds are kept by hand in nccl_settings.json.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

TARGET = Path(__file__).parent.parent / "provision_runtime/facts/nccl_variables.json"
TAG = re.compile(r"v(2)\.(\d+)\.(\d+)-\d+$")
PARAMETER = re.compile(r'NCCL_PARAM\(\w+,\s*"([A-Z0-9_]+)"')
READING = re.compile(r"[gG]et[eE]nv|GetLevel")
VARIABLE = re.compile(r'"(NCCL_[A-Z0-9_]+)"')


def git(folder: str, *arguments: str) -> str:
    command = ["git", "--git-dir", folder, *arguments]
    # grep ends with 1 if it matches nothing.
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, errors="replace").stdout


def names_at(folder: str, tag: str) -> set[str]:
    text = git(folder, "grep", "-hE", r'NCCL_PARAM\(|"NCCL_[A-Z0-9_]+"', tag, "--", "src")
    names = {f"NCCL_{name}" for name in PARAMETER.findall(text)}
    for line in text.splitlines():
        if READING.search(line):
            names.update(VARIABLE.findall(line))
    return names


def releases_of_variables(folder: str) -> dict[str, list[str | None]]:
    """Each variable's first release, and its last one unless the newest release has it, too."""
    by_release: dict[tuple[int, int], set[str]] = {}
    for tag in git(folder, "tag").split():
        match = TAG.match(tag)
        if match:
            release = (int(match[1]), int(match[2]))
            by_release.setdefault(release, set()).update(names_at(folder, tag))
    releases = sorted(by_release)
    result: dict[str, list[str | None]] = {}
    for name in sorted(set().union(*by_release.values())):
        having = [release for release in releases if name in by_release[release]]
        first, last = (".".join(map(str, release)) for release in (having[0], having[-1]))
        result[name] = [first, None if having[-1] == releases[-1] else last]
    return result


def main() -> None:
    variables = releases_of_variables(sys.argv[1])
    lines = ",\n".join(
        f"    {json.dumps(name)}: {json.dumps(variables[name])}" for name in variables
    )
    source = "NVIDIA/nccl, sources of each release; made by tools/nccl_variables.py"
    TARGET.write_text(f'{{\n  "source": "{source}",\n  "variables": {{\n{lines}\n  }}\n}}\n')


if __name__ == "__main__":
    main()
