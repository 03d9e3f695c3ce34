"""Which minor versions a specifier allows, as its writer means it.

By PEP 440, `>3.8` allows 3.8.1 and `<=3.10` refuses 3.10.1. Whoever writes such a bound of Python or
CUDA means minor versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_CLAUSE = re.compile(r"\s*(===?|!=|~=|>=|<=|>|<|=)?\s*v?(\d+(?:\.\d+)*)([.\w+!-]*)(\.?\*)?\s*")


def allowed_minors(specifier: str, minors: Iterable[str]) -> list[str]:
    """Those of some minor versions (3.11) that a specifier allows; alternatives are separated by
    `|`, clauses by `,`. Raises ValueError for what is no specifier."""
    alternatives = [
        [_clause(text) for text in alternative.split(",") if text.strip(" *")]
        for alternative in specifier.replace("||", "|").split("|")
    ]
    return [
        minor
        for minor in minors
        if any(all(_allows(minor, *clause) for clause in clauses) for clauses in alternatives)
    ]


def named_minor(specifier: str) -> str:
    """The one minor version that a specifier names; empty if it names none or more."""
    try:
        operator, version = _clause(specifier)
    except ValueError:
        return ""
    is_exact = operator in ("==", "~=") and len(version) >= (2 if operator == "==" else 3)
    return f"{version[0]}.{version[1]}" if is_exact else ""


def _clause(text: str) -> tuple[str, tuple[int, ...]]:
    match = _CLAUSE.fullmatch(text)
    if match is None:
        raise ValueError(f"`{text.strip()}` is no version")
    operator = {None: "==", "=": "==", "===": "=="}.get(match[1], match[1])
    return operator or "==", tuple(map(int, match[2].split(".")))


def _allows(minor: str, operator: str, version: tuple[int, ...]) -> bool:
    number = tuple(map(int, minor.split(".")))[:2]
    bound = (*version, 0)[:2]
    has_patch = len(version) > 2 and any(version[2:])
    if operator == "==":
        return number[: len(version)] == version[:2]
    if operator == "!=":
        return len(version) != 2 or number != version
    if operator == ">=":
        return number >= bound
    if operator == ">":
        return number > bound or (has_patch and number == bound)
    if operator == "<=":
        return number <= bound
    if operator == "<":
        return number < bound or (has_patch and number == bound)
    if len(version) > 2:  # ~=3.10.2
        return number == bound
    return number >= bound and number[0] == bound[0]
