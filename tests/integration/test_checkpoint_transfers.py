"""Checkpoints to files of safetensors, and from those of torch, Lightning and safetensors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.scripts import run

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run("transfers.py", str(tmp_path_factory.mktemp("transfers")))


@pytest.mark.exhaustive
def test_exported_files_are_what_the_format_says(results: dict[str, Any]) -> None:
    same, read, index, renamed, step, narrow, by_dcp = results["exported"]
    assert same and all(index) and step == 1 and by_dcp
    assert renamed == ["a.w", "b"]
    assert read == {
        "first": ["F32", [3, 4]],
        "second": ["F32", [3, 4]],
        "turned": ["F32", [4, 3]],
        "scalar": ["F32", []],
        "empty": ["F32", [0, 4]],
        "half": ["BF16", [5]],
        "f8": ["F8_E4M3", [7]],
        "flags": ["BOOL", [2]],
        "counts": ["I64", [300]],
    }
    floats = dict.fromkeys(["first", "second", "turned", "scalar", "empty", "half"], "BF16")
    assert narrow == {**floats, "f8": "F8_E4M3", "flags": "BOOL", "counts": "I64"}


@pytest.mark.exhaustive
def test_what_cannot_be_exported_is_named_and_leaves_nothing(results: dict[str, Any]) -> None:
    texts, left = results["refused_exports"]
    expected = [
        "optim.param_groups",
        "FOLDER/full exists",
        "there is nothing below 'nothing.'",
        "gets the name 'x' too",
        "wide is torch.complex128",
        "big has numbers that are too large for torch.float16",
        "is damaged",
    ]
    for text, part in zip(texts, expected, strict=True):
        assert part in text
    assert left == [True, False]


def test_a_file_of_lightning_becomes_a_model_and_its_optimizer(results: dict[str, Any]) -> None:
    texts, left, same, steps = results["imported"]
    expected = [
        "can run code (fractions.Fraction): pass --allow-pickle",
        "has a checkpoint of step 7",
        "gets the name 'x",
    ]
    for text, part in zip(texts, expected, strict=True):
        assert part in text
    assert not left and all(same) and steps == [7]


def test_files_that_would_run_code_are_named_and_run_none(results: dict[str, Any]) -> None:
    same, texts, ran = results["harmful"]
    assert same and not ran
    assert all("allow_pickle=True" in text for text in texts)
