"""The texts of rules.yml: what lines and keys of files mean."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from provision.core.yaml_text import parse_yaml


@cache
def table(name: str) -> Any:
    """One of the tables, as rules.yml describes it."""
    return parse_yaml(Path(__file__).with_name("rules.yml").read_bytes())[name]


@cache
def pattern(text: str) -> re.Pattern[str]:
    """A pattern of a table, with the named ones that it contains."""
    while "@" in text:
        text = re.sub(r"@(\w+)@", lambda name: table("names")[name[1]], text)
    return re.compile(text)
