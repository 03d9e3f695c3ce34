"""JSON text -> the document in it, with one kind of error for every text that is not JSON."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The document in the text.

    Raises ValueError for a text that is not JSON, is not UTF-8, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
