"""Which minor versions a specifier allows, as its writer means it.

By PEP 440, `>3.8` allows 3.8.1 and `<=3.10` refuses 3.10.1. Whoever writes such a bound of Python or
CUDA means minor versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from packaging.specifiers import SpecifierSet

_CLAUSE = re.compile(r"\s*(===?|!=|~=|>=|<=|>|<|=)?\s*v?(\d+(?:\.\d+)*)([.\w+!-]*)(\.?\*)?\s*")
# Of a bound with a patch release, some patch release must be allowed: the first or a late one.
_PATCHES = ("0", "999")


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
    is_exact = len(version) >= {"==": 2, "~=": 3}.get(operator, len(version) + 1)
    return f"{version[0]}.{version[1]}" if is_exact else ""


def _clause(text: str) -> tuple[str, list[str]]:
    match = _CLAUSE.fullmatch(text)
    if match is None:
        raise ValueError(f"`{text.strip()}` is not a version")
    operator = "==" if match[1] in (None, "=", "===") else match[1]
    return operator, match[2].split(".")


def _allows(minor: str, operator: str, version: list[str]) -> bool:
    has_patch = len(version) > 2 and any(map(int, version[2:]))
    if operator == "!=" and len(version) != 2:
        return True
    specifier = operator + ".".join(version)
    if operator in ("==", "!="):
        specifier = f"{operator}{'.'.join(version[:2])}.*"
    elif len(version) == 1:
        specifier += ".0"
    patches = _PATCHES if has_patch else _PATCHES[:1]
    return any(f"{minor}.{patch}" in SpecifierSet(specifier) for patch in patches)
