"""Names that resemble a mistyped one."""

from __future__ import annotations

from collections.abc import Iterable

SIMILARITY = 0.6  # of difflib's ratio, from 0 to 1: `lba` and `lab` have 0.67


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A question with the most similar of the names, and a space; empty if none is similar."""
    import difflib

    similar = difflib.get_close_matches(name, sorted(set(names)), n=1, cutoff=SIMILARITY)
    if not similar or similar[0] == name:
        return ""
    return f"Did you mean `{similar[0]}`? "
