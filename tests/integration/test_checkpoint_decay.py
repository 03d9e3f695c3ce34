"""A run whose files decay, one after the other, always goes on from a right state.

The cases are in checkpoint_decay.py, which runs with torch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.scripts import run_program
from tests.integration.test_checkpoint_faults import place

pytestmark = pytest.mark.torch
__all__ = ["place"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("keep", "saves"),
    [
        (3, 3),
        *((keep, 28) for keep in (1, 2, 3, 5)),
    ],
)
def test_a_flipped_bit_anywhere_costs_the_newest_checkpoint_at_most(
    place: Path, keep: int, saves: int
) -> None:
    outcomes = run_program("checkpoint_decay", str(place), str(saves), str(keep))
    assert outcomes["newest"] > outcomes.get("previous", 0) > (0 if keep > 1 else -1)
    assert outcomes[".distcp healed"] >= saves
