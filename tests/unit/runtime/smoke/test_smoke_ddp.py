"""The phase ddp's judgments that need no torch: gradients of other ranks."""

from __future__ import annotations

import pytest

from provision_runtime.smoke.phases import ddp


@pytest.mark.parametrize(
    ("digests", "ranks"), [("aa", None), ("baa", (0,)), ("ab", (0, 1)), ("aabb", (0, 1, 2, 3))]
)
def test_ranks_with_deviating_gradients_are_named(
    digests: str, ranks: tuple[int, ...] | None
) -> None:
    finding = ddp.digest_finding(list(digests))
    assert (finding.ranks if finding else None) == ranks
