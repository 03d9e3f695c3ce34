"""What --json prints, checked against its schema."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import jsonschema_rs

from provision.core.schema import SCHEMAS


def parse_result(text: str) -> dict[str, Any]:
    """The one object of a text. Fails unless it is valid by the schema that it names."""
    document = json.loads(text)
    assert isinstance(document, dict), text
    check_result(document)
    return document


def check_result(document: dict[str, Any]) -> None:
    named = re.fullmatch(r"provision\.([a-z-]+)/1", document["schema"])
    assert named, document["schema"]
    _validator(named[1]).validate(document)


@functools.cache
def _validator(name: str) -> jsonschema_rs.Validator:
    text = (SCHEMAS / "results" / f"{name}.schema.json").read_text(encoding="utf-8")
    return jsonschema_rs.validator_for(json.loads(text), retriever=_schema_of_file)


def _schema_of_file(uri: str) -> Any:
    name = uri.removeprefix("urn:provision:").rpartition(":")[0]
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
