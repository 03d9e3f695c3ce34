"""Checkpoints of tensors that a CUDA stream still computes. Needs a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.scripts import run

pytestmark = [pytest.mark.torch, pytest.mark.gpu]


def test_save_waits_for_other_streams(tmp_path: Path) -> None:
    result = run("streams.py", str(tmp_path))
    assert result == dict.fromkeys(("content", "behind"), [1.0] * 5)
