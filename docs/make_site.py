"""Assembles the pages of the site in build/site/pages, from which mkdocs makes build/site/html.

Pages stay as code hosts show them: links are relative to the repository. Here they become relative to
the site, and files that pages link to come along. Under a block of commands with the line
`<!-- terminal -->` stands a picture of what these commands print, from a run while the site is made,
so that no picture can age. Nothing of this is committed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from terminal_picture import Machine, picture

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = ROOT / "build" / "site" / "pages"
REPOSITORY_PAGES = (
    *("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("benchmarks/README.md", "runtime/README.md"),
)
# What the search finds last: it has words of all other pages.
RARE = re.compile(
    r"decisions/|CHANGELOG|CONTRIBUTING|release|benchmarks/|gpu-evidence/|architecture"
)
# Words that people search for, and that the page they look for does not have in its title. The search takes a
# word for the start of others: none here may begin with a short common one (in, of, to).
SEARCHED = {
    "drift.md": ("differ", "differences"),
    "image-registry.md": ("registry", "cosign"),
    "launch.md": ("kubernetes", "k8s", "submit"),
    "matrix.md": ("driver",),
    "mirrors.md": ("proxy",),
    "onboarding.md": ("joins", "member"),
    "project-files.md": ("requirements",),
    "smoke-nodes.md": ("network",),
    "troubleshooting.md": ("bug", "crash"),
    "with-other-tools.md": ("module", "modules"),
}
LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)"
)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
TERMINAL = re.compile(r"((?:^    .*\n)+)\n*<!-- terminal(?: (?P<folder>\w+))? -->\n", re.MULTILINE)
API = {
    "checkpoint": ("checkpoint",),
    "integrations": tuple(
        f"checkpoint.integrations.{name}"
        for name in ("accelerate", "lightning", "peft", "transformers")
    ),
    "comm": ("comm.collective", "comm.ranks", "comm.store"),
    "fs": ("fs",),
    "ddp_check": ("facts.ddp_check",),
}


def main() -> int:
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    problems = []
    with tempfile.TemporaryDirectory(prefix="provision-site-") as folder:
        machine = Machine(Path(folder).resolve())
        for path in page_files():
            text, broken = page(path, machine, path.read_text())
            problems += broken
            write(site_path(path), text)
    for name, modules in API.items():
        text = f"---\nsearch:\n  boost: 0.3\n---\n\n{api_page(name, modules)}"
        write(PurePosixPath("api", f"{name}.md"), text)
    for name in ("site.css", "file_worker.js"):
        shutil.copyfile(DOCS / name, PAGES / name)
    print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


def page_files() -> Iterator[Path]:
    yield from sorted(DOCS.rglob("*.md"))
    for name in REPOSITORY_PAGES:
        yield ROOT / name


def site_path(path: Path) -> PurePosixPath:
    """Where a file of the repository is in the site. The README is the front page there."""
    if path == ROOT / "README.md":
        return PurePosixPath("index.md")
    return PurePosixPath(path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT))


def page(path: Path, machine: Machine, text: str) -> tuple[str, list[str]]:
    """A page's text as it is in the site, and links that lead nowhere."""
    problems = []
    site = site_path(path)

    def link(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(path.parent / match["target"]))
        if not target.exists():
            problems.append(f"{path.relative_to(ROOT)}: {match['target']}")
            return match[0]
        if target.is_dir():  # such as a folder of modules: only the repository has it
            return match["text"]
        if match["image"] and target.suffix == ".svg":
            # In the page itself, its colors follow the page's.
            svg = target.read_text()
            return f'<figure class="picture" markdown="0">\n{svg.strip()}\n</figure>'
        if target.suffix != ".md":
            copy = PAGES / site_path(target)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, copy)
        relative = os.path.relpath(site_path(target), site.parent)
        return f"{match['image']}[{match['text']}]({relative}{match['anchor'] or ''})"

    def terminal(match: re.Match[str]) -> str:
        commands = [line[4:] for line in match[1].splitlines() if line.strip()]
        svg = picture(commands, machine, match["folder"])
        return f'{match[1]}\n<div class="terminal" markdown="0">\n{svg}\n</div>\n'

    text = outside_fences(text, lambda part: TERMINAL.sub(terminal, LINK.sub(link, part)))
    boost = 0.02 if RARE.search(str(site)) else 0.6 if site.name == "cli.md" else 1
    tags = SEARCHED.get(str(site), ())
    if boost != 1 or tags:
        text = f"---\nsearch:\n  boost: {boost}\ntags: {json.dumps(tags)}\n---\n\n{text}"
    return text, problems


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """The text with a change made to everything but fenced blocks."""
    parts = []
    end = 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def api_page(name: str, modules: tuple[str, ...]) -> str:
    lines = [f"# {name}", ""]
    for module in modules:
        if len(modules) > 1:
            lines += [f"## provision_runtime.{module}", ""]
        level = 3 if len(modules) > 1 else 2
        lines += [
            f"::: provision_runtime.{module}",
            "    options:",
            f"      heading_level: {level}",
            "",
        ]
    return "\n".join(lines)


def write(path: PurePosixPath, text: str) -> None:
    file = PAGES / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
