"""Compiles the tables of provision/catalog/data to facts.json, which provision reads: parsing the YAML
files would cost every command 80 ms.

    python tools/facts_json.py            # exit code 1 if facts.json is not up to date
    python tools/facts_json.py --write
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from provision.catalog.data_files import DATA, check_sources, load
from provision.catalog.facts import SCHEMA, TABLES
from provision.core.paths import FACTS


def compiled(data: Path = DATA) -> str:
    """The text of facts.json. Raises ValueError for a row without a source."""
    tables = {name: load(f"{name}.yml", data) for name in TABLES}
    for name, content in tables.items():
        check_sources(content, name)
    document = {"schema": SCHEMA, "date": load("edition.yml", data)["date"], "tables": tables}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    path = DATA / FACTS
    text = compiled()
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    if "--write" in sys.argv:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
        return 0
    print(f"{path} is not up to date: python tools/facts_json.py --write")
    return 1


if __name__ == "__main__":
    sys.exit(main())
