"""Every relative link in the pages of this repository leads to a file, and its #anchor to a heading."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def main() -> int:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"]
    count = 0
    broken = []
    for page in sorted(pages):
        for target, anchor in LINK.findall(page.read_text()):
            count += 1
            path = page.parent / target if target else page
            if not path.exists() or (anchor and anchor not in anchors(path)):
                broken.append(f"{page.relative_to(ROOT)}: {target}{'#' if anchor else ''}{anchor}")
    print("\n".join(broken) or f"{count} links lead somewhere")
    return 1 if broken else 0


def anchors(page: Path) -> set[str]:
    """The headings as code hosts name them in links."""
    titles = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


if __name__ == "__main__":
    sys.exit(main())
