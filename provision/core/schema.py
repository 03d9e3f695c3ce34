"""Checks documents against their JSON schemas in provision/schemas: locks, runners, passports,
reports, layouts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from provision.core.dataclass import frozen
from provision.core.json_text import parse_json

SCHEMAS = Path(__file__).parent.parent / "schemas"
# A message may quote the whole value; this many characters of it are enough to recognize it.
MESSAGE_LIMIT = 160
# jsonschema-rs refuses documents that are nested more deeply than about 255 levels.
DEPTH_LIMIT = 200
DocumentPath = tuple[str | int, ...]


class InvalidDocument(ValueError):
    """A text is no document of its schema; the message names the entry and field."""


@frozen
class SchemaViolation:
    """One violation of a schema.

    names: the missing or unexpected properties, if the violation is about
    properties.
    """

    path: DocumentPath
    names: tuple[str, ...]
    message: str


def schema_error(document: Any, schema: str) -> str | None:
    """The first violation of `provision/schemas/<schema>.schema.json`, or None if there is no
    violation.

    The text names the entry and the field: `package[3].hash (numpy): "md5" is a required property`.
    """
    violations = schema_violations(document, schema)
    if not violations:
        return None
    first = min(violations, key=lambda violation: len(violation.path))
    return f"{location(document, first.path)}: {first.message}"


def parse_document(content: str | bytes, schema: str) -> Any:
    """The JSON document in a text, if it fits `provision/schemas/<schema>.schema.json`. Raises
    InvalidDocument."""
    try:
        document = parse_json(content)
    except ValueError as error:
        raise InvalidDocument(f"it is not JSON ({error})") from error
    if problem := schema_error(document, schema):
        raise InvalidDocument(problem)
    return document


def first_schema_error(document: Any, schema: str) -> str | None:
    """As `schema_error`, but the first violation in the document: to find all of them in a text of
    a stranger may take minutes and gigabytes."""
    import jsonschema_rs

    try:
        _validator(schema).validate(document)
    except jsonschema_rs.ValidationError as error:
        violation = _violation(error, schema)
        return f"{location(document, violation.path)}: {violation.message}"
    except ValueError as error:
        return f"it cannot be checked ({error})"
    return None


def schema_violations(document: Any, schema: str) -> list[SchemaViolation]:
    """All violations of `provision/schemas/<schema>.schema.json`."""
    try:
        errors = list(_validator(schema).iter_errors(document))
    except ValueError as error:
        # YAML and Python hold values that JSON does not, and jsonschema-rs has a recursion limit.
        path, problem = _not_json(document, ())
        problem = problem or f"it cannot be checked ({error})"
        return [SchemaViolation(path=path, names=(), message=problem)]
    return [_violation(error, schema) for error in errors]


def _violation(error: Any, schema: str) -> SchemaViolation:
    error = _most_telling(error)
    message = error.message
    if error.kind.name == "pattern":
        # A description says more than a regular expression.
        description = _property_at(schema, error.schema_path[:-1]).get("description")
        if description:
            message = f"{json.dumps(error.instance)} is not {description}"
    if len(message) > MESSAGE_LIMIT:
        message = f"{message[:MESSAGE_LIMIT]}..."
    names: tuple[str, ...] = ()
    if error.kind.name == "required":
        names = (str(error.kind.property),)
    elif error.kind.name == "additionalProperties":
        names = tuple(error.kind.unexpected)
    return SchemaViolation(path=tuple(error.instance_path), names=names, message=message)


def _property_at(schema: str, path: Sequence[str | int]) -> Any:
    value: Any = schema_document(schema)
    for step in path:
        value = value[step]
    return value


def _most_telling(error: Any) -> Any:
    """For "valid under none of these schemas": the error of the alternative that matched
    furthest."""
    alternatives = [
        alternative for branch in getattr(error.kind, "context", ()) for alternative in branch
    ]
    if not alternatives:
        return error

    def closeness(alternative: Any) -> tuple[int, bool]:
        return len(alternative.instance_path), alternative.kind.name != "type"

    return _most_telling(max(alternatives, key=closeness))


def _not_json(value: Any, path: DocumentPath) -> tuple[DocumentPath, str]:
    """The path of the first value that JSON cannot hold, and the problem; an empty problem if there
    is no such value.
    """
    if len(path) > DEPTH_LIMIT:
        return path[:2], "it contains itself, or is nested too deeply"
    children: list[tuple[str | int, Any]] = []
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                return path, f"the key `{key}` is not text"
        children = list(value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        children = list(enumerate(value))
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:  # JSON may hold half of a surrogate pair; no text does
            return path, "the text is not valid Unicode"
    elif value is not None and not isinstance(value, bool | int | float):
        return path, f"a {type(value).__name__} is not text: write it in quotes"
    for step, child in children:
        child_path, problem = _not_json(child, (*path, step))
        if problem:
            return child_path, problem
    return path, ""


def location(document: Any, path: Sequence[str | int]) -> str:
    """A path in a document as a user reads it, with the `name` of the innermost list entry that has one."""
    text, name = "", ""
    value = document
    for step in path:
        if isinstance(value, Mapping):
            step = str(step)  # jsonschema-rs has a key of digits as a number
        value = value[step]
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
        if (
            isinstance(step, int)
            and isinstance(value, Mapping)
            and isinstance(value.get("name"), str)
        ):
            name = f" ({value['name']})"
    return (text.removeprefix(".") or "the top level") + name


@cache
def schema_document(schema: str) -> Mapping[str, Any]:
    document = json.loads((SCHEMAS / f"{schema}.schema.json").read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


@cache
def _validator(schema: str) -> Any:
    import jsonschema_rs

    return jsonschema_rs.validator_for(dict(schema_document(schema)))
