"""The local part of docs/tutorial.md: each command as printed, in order, and what it prints."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.integration.conftest import make_home

pytestmark = [pytest.mark.exhaustive, pytest.mark.index, pytest.mark.torch]

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps() -> list[tuple[str, list[str]]]:
    """Each command of the page, with the lines that it prints there."""
    result: list[tuple[str, list[str]]] = []
    page = (ROOT / "docs" / "tutorial.md").read_text()
    local, _, rest = page.partition("\n## 7. ")
    assert rest
    for block in BLOCK.findall(local):
        for line in block.splitlines():
            if line.startswith("$ "):
                result.append((line[2:], []))
            elif line not in ("", "..."):
                result[-1][1].append(line)
    return result


def pattern(line: str) -> str:
    """A line of the page as an expression: `...` stands for anything, and so does a number."""
    words = [re.escape(word) for word in re.sub(r"\.\.\.", "\0", line).split()]
    return re.sub(r"\d+", r"\\d+", r"\s+".join(words)).replace("\0", ".*")


def test_the_local_part_prints_what_the_page_says(tmp_path: Path, packaged_python: Path) -> None:
    home = make_home(tmp_path / "home", shares_packages=True)
    shutil.copytree(packaged_python, tmp_path / "home" / "data" / "channels", symlinks=True)
    path = f"{Path(sys.executable).parent}:{home.env['PATH']}"
    author = {"GIT_AUTHOR_NAME": "ann", "GIT_AUTHOR_EMAIL": "ann@lab.example"}
    author |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in author.items()}
    env = {**home.env, **author, "HOME": str(tmp_path / "home"), "PATH": path}
    folder = tmp_path / "home" / "work"
    documented = steps()
    assert len(documented) >= 10
    for command, lines in documented:
        result = subprocess.run(
            ["bash", "-c", f"set -e; {command}"],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert result.returncode == 0, f"{command}\n{result.stdout}"
        missing = [line for line in lines if not re.search(pattern(line), result.stdout)]
        assert missing == [], f"{command}\n{result.stdout}"
        if command.startswith("git init"):
            folder = folder / "vision"
            shutil.copyfile(ROOT / "examples" / "train.py", folder / "train.py")
