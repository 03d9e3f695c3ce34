"""Prepares a release. The session `release` of nox calls it; docs/release.md has the other steps.

python tools/release.py check            refuse, with every reason, what must not be released
python tools/release.py write FOLDER     add notes.md, tag.txt and SHA256SUMS to the wheels and
                                         sdists in FOLDER
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TITLE = re.compile(r"^## (.+)\n", re.MULTILINE)


def main(arguments: list[str]) -> int:
    if arguments == ["check"]:
        problems = release_problems(ROOT)
        print("\n".join(problems) or f"{package_version(ROOT)} can be released")
        return 1 if problems else 0
    command, folder = arguments
    assert command == "write", command
    write_release_files(ROOT, Path(folder))
    return 0


def package_version(root: Path) -> str:
    text = (root / "provision" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert match, "provision/__init__.py states no version"
    return match[1]


def changelog_sections(root: Path) -> dict[str, str]:
    """The changelog's text by section title, newest first."""
    _, *parts = TITLE.split((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    return {title: text.strip() for title, text in zip(parts[::2], parts[1::2])}


def release_problems(root: Path) -> list[str]:
    version = package_version(root)
    unreleased, *released = changelog_sections(root).items()
    problems = []
    changes = _git(root, "status", "--porcelain")
    if changes:
        problems.append(f"The tree has changes that are not committed:\n{changes}")
    if unreleased != ("Unreleased", ""):
        problems.append(
            "CHANGELOG.md must begin with an empty section Unreleased: move its entries to "
            f"{version}."
        )
    newest = released[0][0] if released else "no released version"
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", newest):
        problems.append(
            f"provision/__init__.py states {version}, and the newest section of CHANGELOG.md is "
            f"{newest}: it must be `## {version} (YYYY-MM-DD)`."
        )
    if _git(root, "tag", "--list", f"v{version}"):
        problems.append(f"The tag v{version} exists: raise the version in provision/__init__.py.")
    return problems


def write_release_files(root: Path, folder: Path) -> None:
    version = package_version(root)
    distributions = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    names = [path.name for path in distributions]
    for suffix in ("-py3-none-any.whl", ".tar.gz"):
        expected = f"provision_gpu-{version}{suffix}"
        if expected not in names:
            raise SystemExit(f"{folder} lacks {expected}; it has {', '.join(names) or 'nothing'}")
    notes = next(
        text for title, text in changelog_sections(root).items() if title.startswith(f"{version} ")
    )
    # The list at the top of a section summarizes it.
    headlines = notes.partition("\n### ")[0].strip()
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in distributions
    ]
    contents = {
        "notes.md": notes,
        "tag.txt": f"provision {version}\n\n{headlines}",
        "SHA256SUMS": "\n".join(sums),
    }
    for name, text in contents.items():
        (folder / name).write_text(text + "\n", encoding="utf-8")


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
