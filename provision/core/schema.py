"""Documents against their JSON schemas, which lie in provision/schemas: locks, passports, reports, layouts, runners."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).parent.parent / "schemas"
# A message may quote the whole value; this many characters of it are enough to recognize it.
MESSAGE_LIMIT = 160


def schema_error(document: Any, schema: str) -> str | None:
    """The first violation of `provision/schemas/<schema>.schema.json`, or None if there is no violation.

    The text names the entry and the field: `package[3].hash (numpy): "md5" is a required property`.
    """
    try:
        errors = list(_validator(schema).iter_errors(document))
    except UnicodeEncodeError:  # JSON may hold half of a surrogate pair; no text does
        return "the top level: a text is not valid Unicode"
    if not errors:
        return None
    error = _most_telling(min(errors, key=lambda each: len(each.instance_path)))
    message = error.message
    if len(message) > MESSAGE_LIMIT:
        message = f"{message[:MESSAGE_LIMIT]}..."
    return f"{_location(document, error.instance_path)}: {message}"


def _most_telling(error: Any) -> Any:
    """For "valid under none of these schemas": the error of the alternative that came farthest."""
    alternatives = [each for branch in getattr(error.kind, "context", ()) for each in branch]
    if not alternatives:
        return error
    return _most_telling(max(alternatives, key=lambda each: len(each.instance_path)))


def _location(document: Any, path: Sequence[str | int]) -> str:
    """The path as a user reads it, with the `name` of the innermost list entry that has one."""
    text, name = "", ""
    value = document
    for step in path:
        value = value[step]
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
        if (
            isinstance(step, int)
            and isinstance(value, Mapping)
            and isinstance(value.get("name"), str)
        ):
            name = f" ({value['name']})"
    return (text.removeprefix(".") or "the top level") + name


@functools.cache
def _validator(schema: str) -> Any:
    import jsonschema_rs

    text = (SCHEMAS / f"{schema}.schema.json").read_text(encoding="utf-8")
    return jsonschema_rs.validator_for(json.loads(text))
