"""Breaks the code in one place at a time, and runs the tests that must notice.

The places are in tests/mutants.json: `file`, `before` (which must stand there exactly once),
`after`, and `tests`, the arguments for pytest. Prints one line per place; the exit status is 1 if a
break went unnoticed. Works in a copy of the tree, so an interrupted run leaves nothing broken.

    python tools/mutants.py [WORD ...]    only places whose file or text holds a word
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIST = ROOT / "tests" / "mutants.json"
PARTS = ("provision", "provision_runtime", "templates", "tests", "docs", "tools", "examples")
FILES = ("pyproject.toml", "README.md", "environment.yml", "conda-lock.yml", "Dockerfile")
TIMEOUT_S = 300
# pytest's exit status when tests failed; others mean that it could not run them.
TESTS_FAILED = 1


def main(words: list[str]) -> int:
    mutants = json.loads(LIST.read_text(encoding="utf-8"))
    # Without pytest, Python ends with the status of failed tests.
    subprocess.run([sys.executable, "-m", "pytest", "--version"], check=True, capture_output=True)
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        for mutant in mutants:
            text = f"{mutant['file']} {mutant['before']} {mutant['after']}"
            if words and not any(word in text for word in words):
                continue
            answer = try_mutant(tree, mutant)
            survivors += answer != "noticed"
            print(f"{answer:10}  {mutant['file']}: {mutant['after'].strip()[:70]!r}", flush=True)
    return 1 if survivors else 0


def copy_tree(tree: Path) -> None:
    for part in PARTS:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, tree / part, ignore=ignored)
    for name in FILES:
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tree / name)


def try_mutant(tree: Path, mutant: dict[str, str]) -> str:
    """`noticed`, `SURVIVED`, or why neither can be said."""
    path = tree / mutant["file"]
    original = path.read_text(encoding="utf-8")
    if original.count(mutant["before"]) != 1:
        return "NOT FOUND"
    path.write_text(original.replace(mutant["before"], mutant["after"]), encoding="utf-8")
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        # The first entry of the path decides which copy of the packages is imported.
        environment = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        run = subprocess.run(
            [*command, *mutant["tests"].split()],
            cwd=tree,
            env={**os.environ, **environment},
            capture_output=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return "noticed"  # a hang is noticed
    finally:
        path.write_text(original, encoding="utf-8")
    if run.returncode == TESTS_FAILED:
        return "noticed"
    if run.returncode == 0:  # the last line says how many tests ran, and how many were skipped
        return f"SURVIVED ({run.stdout.decode().splitlines()[-1]})"
    return f"status {run.returncode}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
