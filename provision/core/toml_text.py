"""The text of a TOML file -> the document in it."""

from __future__ import annotations

import sys
from typing import Any


def parse_toml(text: str) -> dict[str, Any]:
    """The document in a text. Raises ValueError."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    content: dict[str, Any] = tomllib.loads(text)
    return content
