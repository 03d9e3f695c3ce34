"""Changing the lists of a spec.yml that its user wrote."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from provision.core.errors import InvalidSpec
from provision.render.spec_text import with_list


@pytest.mark.parametrize(
    "text,items,expected",
    [
        ("torch: '2.3'\n", ["a"], "torch: '2.3'\npip:\n  - 'a'\n"),
        ("torch: '2.3'", ["a"], "torch: '2.3'\npip:\n  - 'a'\n"),
        ("pip:\n- a  # why\n- b\nx: 1\n", ["a", "c"], "pip:\n- a  # why\n- 'c'\nx: 1\n"),
        ("pip:\n    - a\n# end\n", ["a", "it's"], "pip:\n    - a\n    - 'it''s'\n# end\n"),
        ("pip: [a, b]  # both\nx: 1\n", ["b"], "pip:\n  - 'b'\n  # both\nx: 1\n"),
        ("x: 1\npip:\n- a\ny: 2\n", [], "x: 1\ny: 2\n"),
        ("pip: [a]\ny: 2\n", [], "y: 2\n"),
        ("x: 1\npip: []\n", ["a"], "x: 1\npip:\n  - 'a'\n"),
        ("pip:\n- a\n- b", ["a", "b", "c"], "pip:\n- a\n- b\n- 'c'\n"),
    ],
)
def test_only_the_list_changes(text: str, items: list[str], expected: str) -> None:
    changed = with_list(text, "pip", items)
    assert changed == expected
    assert sorted(yaml.safe_load(changed).get("pip", [])) == sorted(items)


def test_layout_that_cannot_be_changed_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="does not allow a change in place"):
        with_list("pip: &x\n- a\nconda: *x\n", "pip", [])


WORDS = st.lists(st.sampled_from(["a", "b<2", "c>=1", "d", "e[x]"]), unique=True, max_size=4)


@given(before=WORDS, after=WORDS, style=st.sampled_from([None, True, False]))
def test_result_reads_as_requested(before: list[str], after: list[str], style: bool | None) -> None:
    document = {"torch": "2.3", "pip": before, "jupyter": False}
    text = yaml.safe_dump(document, default_flow_style=style, sort_keys=False)
    if style:
        return  # a mapping on one line has no lines to change
    content = yaml.safe_load(with_list(text, "pip", after))
    assert sorted(content.get("pip", [])) == sorted(after)
    assert (content["torch"], content["jupyter"]) == ("2.3", False)
