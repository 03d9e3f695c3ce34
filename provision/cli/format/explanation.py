"""What `provision matrix explain` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provision.core.types import Choice
    from provision.resolver import Explanation

Row = tuple[str, str, str, str]  # what, its value, the reason, the source


def explanation_lines(explanation: Explanation) -> list[str]:
    """Each choice of an environment with its value, and below it the reason and its source."""
    pins = [(pin.manager, pin.requirement, pin.reason, pin.source) for pin in explanation.pins]
    lines = [
        explanation.name,
        *_section("choices", _rows(explanation.choices)),
        *_section("pins", pins),
        *_section("rules", _rows(explanation.rules)),
        *_section("warnings", _rows(explanation.warnings)),
        *_section("not chosen", _rows(explanation.not_chosen)),
    ]
    machine = ", ".join(
        f"{name} {version}" for name, version in explanation.virtual_packages.items()
    )
    return [*lines, "", f"solved for {', '.join(explanation.platforms)} with {machine}"]


def _rows(choices: Sequence[Choice]) -> list[Row]:
    return [(choice.what, choice.value, choice.reason, choice.source) for choice in choices]


def _section(title: str, rows: Sequence[Row]) -> list[str]:
    """A titled list; nothing without rows."""
    if not rows:
        return []
    width = max(len(row[0]) for row in rows)
    lines = ["", title]
    for what, value, reason, source in rows:
        lines.append(f"  {what:{width}}  {value}".rstrip())
        origin = f" ({source})" if source else ""
        lines.append(f"  {'':{width}}    {reason}{origin}")
    return lines
