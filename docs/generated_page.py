"""What the scripts that generate pages share: write the page, or with --check compare it."""

from __future__ import annotations

import sys
from pathlib import Path


def replace_section(text: str, begin: str, end: str, section: str) -> str:
    """A page with what stands between the lines `begin` and `end` replaced."""
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{section}\n{end}{after}"


def write_or_check(path: Path, text: str) -> int:
    """Write the page. With --check as an argument, write nothing; returns 1 if it is stale."""
    if "--check" not in sys.argv[1:]:
        path.write_text(text, encoding="utf-8")
        return 0
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return 0
    script = Path(sys.argv[0]).name
    name = path.relative_to(Path(__file__).parent.parent)
    message = f"{name} is out of date: run python docs/{script} --write"
    print(message, file=sys.stderr)
    return 1
