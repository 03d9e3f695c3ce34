"""What `provision remove` says of packages that it cannot remove."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provision.verbs.change.change import _not_requested


@pytest.mark.parametrize(
    "name,message,advice",
    [
        ("torch", "edit `torch:` there, then `provision build lab --relock`.", ""),
        ("ipykernel", "leaves it out, then `provision build lab --relock`.", ""),
        ("nopkg", "and the lock does not have it.", "`pip` and `conda` in envs/lab/spec.yml list"),
    ],
)
def test_refused_removals_end_with_their_step(name: str, message: str, advice: str) -> None:
    """A key of spec.yml has a step of its own, after which the lists are no help."""
    plan: Any = SimpleNamespace(
        name="lab",
        folder=Path("envs/lab"),
        lock=SimpleNamespace(packages=()),
        resolution=SimpleNamespace(pins=()),
    )
    refusal = _not_requested(plan, [name], {"einops"})
    assert refusal.message.endswith(message)
    assert refusal.advice.startswith(advice) and bool(refusal.advice) is bool(advice)
