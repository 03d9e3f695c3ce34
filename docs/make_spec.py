"""Writes the table of keys in docs/spec.md from their declarations; --check only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from generated_page import replace_section, write_or_check

from provision import sources
from provision.core.spec_fields import SPEC_KEYS, SpecKey

PAGE = Path(__file__).parent / "spec.md"
BEGIN = "<!-- The table of keys is made by `python docs/make_spec.py`; a test compares it. -->\n"
END = "<!-- End of the table of keys. -->\n"


def row(key: SpecKey) -> str:
    name, option = f"`{key.name}`", f"`{key.option}`"
    if key.is_list:
        name += " (list)"
    elif key.kind == "switch":
        name = f"`{key.name}: true`"
    elif key.kind == "flag" and key.default == "yes":
        name, option = f"`{key.name}: false`", f"`{key.negative_option}`"
    elif key.kind == "flag":
        name = f"`{key.name}: true`"
    if key.in_file_only:
        option = ""
    meaning = key.docs
    if key.kind in ("choice", "source"):
        values = ", ".join(f"`{value}`" for value in sources.allowed_choices(key))
        meaning += f": {values}. Default: `{key.default}`"
    return f"| {name} | {option} | {meaning} |\n"


def page() -> str:
    table = "| key | option | what |\n|---|---|---|\n" + "".join(row(key) for key in SPEC_KEYS)
    return replace_section(PAGE.read_text(encoding="utf-8"), BEGIN, END, table)


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
