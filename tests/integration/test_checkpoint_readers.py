"""Checkpoints read back by our reader, by torch's, and by other releases of torch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.scripts import run
from tests.integration.smoke_process import PYTHON

pytestmark = pytest.mark.torch

# Interpreters with other releases of torch, separated by colons: each then reads what the other wrote.
OTHERS = [
    python
    for python in os.environ.get("PROVISION_TEST_OTHER_PYTHONS", "").split(os.pathsep)
    if python
]


@pytest.mark.exhaustive
def test_every_kind_of_value_reads_back_with_ours_and_torch(tmp_path: Path) -> None:
    assert run("readers.py", "save", str(tmp_path)) == {"problems": []}
    result = run("readers.py", "read", str(tmp_path))
    assert result["ours"] == []
    assert {name: wrong for name, wrong in result.items() if wrong} == {}


@pytest.mark.skipif(
    not OTHERS,
    reason="PROVISION_TEST_OTHER_PYTHONS names no interpreter with another release of torch",
)
def test_torch_releases_read_each_others_checkpoints(tmp_path: Path) -> None:
    pythons = [PYTHON, *OTHERS]
    for writer in pythons:
        folder = tmp_path / str(pythons.index(writer))
        folder.mkdir()
        assert run("readers.py", "save", str(folder), python=writer) == {"problems": []}
        for reader in pythons:
            result = run("readers.py", "read", str(folder), python=reader)
            assert result["ours"] == [], (writer, reader)
            assert {name: wrong for name, wrong in result.items() if wrong} == {}, (writer, reader)


@pytest.mark.exhaustive
def test_many_small_tensors_take_little_space(tmp_path: Path) -> None:
    found = run("small_tensors.py", str(tmp_path))
    assert found.pop("times the tensors") < 3
    assert found == {
        "warnings": [],
        "equal": [True, True],
        "changed": [True, True],
        "progress": True,
        "lines": ["loading", "saving step 5"],
        "refused": ["enough", True],
        "verify": [True],
        "load": [True, True],
    }
