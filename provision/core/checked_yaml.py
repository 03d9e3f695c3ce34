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

    advice_without: the advice if there is no such file, where that is another one. Raises as
    `parse_checked_yaml`.
    """
    try:
        text = read_source(path)
    except FileNotFoundError as error:
        raise InvalidSpec(f"There is no {path}.", advice=advice_without or advice) from error
    except YamlError as error:
        raise InvalidSpec(error.in_file(path)) from error
    return parse_checked_yaml(path, text, schema, further=further, advice=advice)[0]


def parse_checked_yaml(
    path: Path,
    text: str | bytes,
    schema: str,
    *,
    further: Callable[[Any, YamlLines], Iterable[Mistake]] | None = None,
    advice: str,
) -> tuple[Any, YamlLines]:
    """The same of a text, with the lines of its keys.

    further: yields what the schema cannot express; asked about documents that the schema accepts.
    None for a file of another tool, which may repeat keys. Raises InvalidSpec with all mistakes at
    once.
    """
    try:
        document, lines = parse_yaml(text), YamlLines(compose_yaml(text))
    except YamlError as error:
        raise InvalidSpec(error.in_file(path), advice=advice if further is None else "") from error
    mistakes = {
        (lines.line(violation.path), f"{location(document, violation.path)}: {violation.message}.")
        for violation in schema_violations(document, schema)
    }
    if further is not None:
        mistakes.update(() if mistakes else further(document, lines))
        mistakes.update(lines.repeated_keys())
    if mistakes:
        sentences = [f"{path}:{line}: {mistake}" for line, mistake in sorted(mistakes)]
        raise InvalidSpec("\n".join(sentences), advice=advice)
    return document, lines
