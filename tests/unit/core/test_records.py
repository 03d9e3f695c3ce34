"""Records that provision writes for itself: what they hold comes back, and nothing else is taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

import pytest

from provision.core.dataclass import frozen
from provision.core.records import parse_record


@frozen
class Inner:
    count: int


@frozen
class Outer:
    state: Literal["new", "old"]
    path: Path
    inner: tuple[Inner, ...] = ()
    reason: str | None = None
    texts: Mapping[str, str] = field(default_factory=dict)


def test_every_kind_of_field_comes_back() -> None:
    text = '{"state": "old", "path": "/a", "inner": [{"count": 3}], "reason": "b", "texts": {"c": "d"}}'
    expected = Outer(
        state="old", path=Path("/a"), inner=(Inner(count=3),), reason="b", texts={"c": "d"}
    )
    assert parse_record(Outer, text) == expected


def test_absent_fields_have_their_defaults_and_unknown_ones_are_skipped() -> None:
    text = '{"state": "new", "path": "/a", "inner": [{"count": 3, "of_later": 1}], "more": []}'
    assert parse_record(Outer, text) == Outer(
        state="new", path=Path("/a"), inner=(Inner(count=3),), reason=None, texts={}
    )


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"state": "new"}',
        '{"state": "other", "path": "/a"}',
        '{"state": "new", "path": 1}',
        '{"state": "new", "path": "/a", "reason": 1}',
        '{"state": "new", "path": "/a", "inner": [{}]}',
        '{"state": "new", "path": "/a", "inner": {"count": 3}}',
        '{"state": "new", "path": "/a", "inner": [{"count": true}]}',
        '{"state": "new", "path": "/a", "texts": {"c": 1}}',
    ],
)
def test_what_is_of_another_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^at Outer"):
        parse_record(Outer, text)
