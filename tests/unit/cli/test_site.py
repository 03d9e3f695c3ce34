"""The site: every page is in its navigation, and links of the repository become links of the site."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT

NAVIGATION = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]


def test_every_page_is_in_the_navigation_once() -> None:
    listed = re.findall(r"(\S+\.md)$", NAVIGATION, re.MULTILINE)
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert len(listed) == len(set(listed))
    assert pages - set(listed) == set(), "add the page to one part of `nav` in mkdocs.yml"


def test_links_become_links_of_the_site(tmp_path: Path) -> None:
    """Of a page, of a file outside of docs/, of a folder; none within a fenced block."""
    code = """
import sys
from pathlib import Path
sys.path.insert(0, "docs")
import make_site
make_site.PAGES = Path(sys.argv[1])
page = Path("docs/pack.md").absolute()
text = '[a](../SECURITY.md#x) [b](../provision/schemas/pack.schema.json) [c](../tests)\\n```\\n[d](../e.md)\\n```\\n'
links = make_site.page(page, None, text)
print(*links, sep="|")
"""
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = "[a](SECURITY.md#x) [b](provision/schemas/pack.schema.json) c\n```\n[d](../e.md)\n```\n|[]\n"
    assert result.stdout == expected
    assert (tmp_path / "provision/schemas/pack.schema.json").exists()
