"""Reads the data files, and checks that every row in them states its source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from provision.core.yaml_text import parse_yaml

DATA = Path(__file__).parent / "data"
PACKAGE = Path(__file__).parent.parent
# In a wheel they are in the package, in a checkout at its root.
TEMPLATES = next(
    path for path in (PACKAGE / "templates", PACKAGE.parent / "templates") if path.is_dir()
)
# The keys that make a mapping a row that states a fact.
FACT_KEYS = frozenset(
    [
        "version",
        "versions",
        "requirement",
        "minimum",
        "sm",
        "ptx",
        "capability",
        "builds",
        "cuda",
        "build",
        "toolkit",
        "floor",
    ]
)


def load(name: str, data: Path = DATA) -> Any:
    """A data file, parsed and checked for sources."""
    text = (data / name).read_text(encoding="utf-8")
    # What every lock reads is JSON: to import YAML takes 15 ms.
    content = json.loads(text) if name.endswith(".json") else parse_yaml(text)
    check_sources(content, name)
    return content


def check_sources(content: Any, location: str) -> None:
    """Raise ValueError for a row that states a fact without its source."""
    if isinstance(content, dict):
        if not content.get("source"):
            facts = sorted(key for key in FACT_KEYS & content.keys() if content[key] is not None)
            if any(not isinstance(content[key], dict) for key in facts):
                raise ValueError(f"{location} states {', '.join(facts)} without a source")
        for key, row in content.items():
            if type(row) is dict or type(row) is list:
                check_sources(row, f"{location}: {key}")
    elif isinstance(content, list):
        for index, row in enumerate(content):
            if type(row) is dict:
                check_sources(row, f"{location}[{index}]")
