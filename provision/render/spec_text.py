"""Changing lists in the text of a spec.yml that its user wrote: comments and order stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from provision.core.errors import InvalidSpec
from provision.core.yaml_text import YamlError, compose_yaml, parse_yaml


def with_list(text: str, key: str, items: Sequence[str]) -> str:
    """The text with this list under a key of the top level; an empty one removes the key.

    Lines of items that stay are not touched. Raises InvalidSpec for a text that is laid out so
    that this cannot be done.
    """
    root = compose_yaml(text)
    nodes = {} if root is None else {node.value: (node, value) for node, value in root.value}
    if key not in nodes:
        end = "" if not text or text.endswith("\n") else "\n"
        changed = text + end + _list_text(key, items) if items else text
    else:
        key_node, value = nodes[key]
        is_block = value.id == "sequence" and not value.flow_style
        if is_block and items:
            changed = _with_block_items(text, value, items)
        else:
            rest = text[value.end_mark.index :]
            rest = rest if is_block else rest.removeprefix("\n")
            changed = text[: key_node.start_mark.index] + _list_text(key, items) + rest
    _check(text, changed, key, items)
    return changed


def _list_text(key: str, items: Sequence[str]) -> str:
    return f"{key}:\n" + "".join(f"  - {_quoted(item)}\n" for item in items) if items else ""


def _with_block_items(text: str, value: Any, items: Sequence[str]) -> str:
    """One item a line: lines of removed items go, new ones follow the last that stays."""
    lines = text.splitlines(keepends=True)
    indent = " " * value.start_mark.column
    removed_lines: set[int] = set()
    present = []
    for node in value.value:
        if node.value in items:
            present.append(node.value)
        else:
            removed_lines.update(range(node.start_mark.line, node.end_mark.line + 1))
    new_lines = [f"{indent}- {_quoted(item)}\n" for item in items if item not in present]
    last = value.value[-1].end_mark.line
    changed = []
    for number, line in enumerate(lines):
        if number not in removed_lines:
            changed.append(line if line.endswith("\n") else f"{line}\n")
        if number == last:
            changed += new_lines
    return "".join(changed)


def _quoted(item: str) -> str:
    """A YAML scalar that every reader takes for text."""
    return "'" + item.replace("'", "''") + "'"


def _check(text: str, changed: str, key: str, items: Sequence[str]) -> None:
    """Raise InvalidSpec unless the text reads as before, with the list as it is to be."""
    expected = dict(parse_yaml(text) or {})
    try:
        content = parse_yaml(changed) or {}
    except YamlError:
        content = {}
    same_items = sorted(content.get(key) or []) == sorted(items)
    if not same_items or {**content, key: None} != {**expected, key: None}:
        listed = ", ".join(items) or "nothing"
        raise InvalidSpec(
            f"The layout of the list `{key}` in spec.yml does not allow a change in place.",
            advice=f"Write it by hand ({key}: {listed}), and lock with --relock.",
        )
