"""A YAML file of the user -> the document in it, checked by its schema, with every mistake and its line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from provision.core.errors import InvalidSpec
from provision.core.schema import location, schema_violations
from provision.core.yaml_text import YamlError, YamlLines, compose_yaml, parse_yaml, read_source

Mistake = tuple[int, str]


def read_checked_yaml(
    path: Path,
    schema: str,
    *,
    further: Callable[[Any, YamlLines], Iterable[Mistake]],
    advice: str,
    advice_without: str = "",
) -> Any:
    """The document of a file that `provision/schemas/<schema>.schema.json` defines.

    further: yields what the schema cannot express; asked about documents that the schema accepts.
    advice_without: the advice if there is no such file, where that is another one. Raises
    InvalidSpec with all mistakes at once.
    """
    try:
        text = read_source(path)
        document, lines = parse_yaml(text), YamlLines(compose_yaml(text))
    except FileNotFoundError as error:
        raise InvalidSpec(f"There is no {path}.", advice=advice_without or advice) from error
    except YamlError as error:
        raise InvalidSpec(error.in_file(path)) from error
    mistakes = {
        (lines.line(violation.path), f"{location(document, violation.path)}: {violation.message}.")
        for violation in schema_violations(document, schema)
    }
    if not mistakes:
        mistakes.update(further(document, lines))
    mistakes.update(lines.repeated_keys())
    if mistakes:
        sentences = [f"{path}:{line}: {mistake}" for line, mistake in sorted(mistakes)]
        raise InvalidSpec("\n".join(sentences), advice=advice)
    return document
