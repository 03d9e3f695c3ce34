"""Boxes of a tensor held by ranks cover it exactly, or the error says what is wrong."""

from __future__ import annotations

import math

import pytest

from provision_runtime.checkpoint import manifest
from provision_runtime.checkpoint.manifest import Record

Box = tuple[tuple[int, ...], tuple[int, ...]]


def problem(shape: tuple[int, ...], *boxes: Box) -> str | None:
    return manifest.coverage_problem(
        shape, [Record("file", 0, 0, "", offsets, sizes) for offsets, sizes in boxes]
    )


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ((), [((), ())]),
        ((0,), [((0,), (0,))]),
        ((3, 0), [((0, 0), (3, 0))]),
        ((10,), [((6,), (4,)), ((0,), (6,))]),
        ((4, 6), [((0, 0), (4, 2)), ((0, 2), (4, 2)), ((0, 4), (4, 2))]),
        ((4, 4), [((0, 0), (2, 2)), ((2, 0), (2, 2)), ((0, 2), (2, 2)), ((2, 2), (2, 2))]),
        (
            (3, 3),
            [
                ((0, 0), (2, 1)),
                ((0, 1), (1, 2)),
                ((1, 2), (2, 1)),
                ((2, 0), (1, 2)),
                ((1, 1), (1, 1)),
            ],
        ),
    ],
)
def test_boxes_that_cover_the_tensor_are_accepted(shape: tuple[int, ...], boxes: list[Box]) -> None:
    assert sum(math.prod(sizes) for _, sizes in boxes) == math.prod(shape)
    assert problem(shape, *boxes) is None


def test_too_few_and_too_many_elements_are_reported() -> None:
    assert problem((10,), ((0,), (6,))) == "the ranks hold 6 of its 10 elements"
    assert problem((10,)) == "the ranks hold 0 of its 10 elements"
    assert problem((4,), ((0,), (3,)), ((2,), (2,))) == "the ranks hold 5 of its 4 elements"


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ((10,), [((0,), (6,)), ((4,), (4,))]),
        ((4, 4), [((0, 0), (2, 4)), ((1, 0), (2, 4))]),
        ((4, 4), [((0, 0), (4, 2)), ((0, 1), (4, 2))]),
        ((4, 4), [((0, 0), (4, 1)), ((0, 1), (3, 3)), ((2, 3), (1, 1)), ((3, 1), (1, 2))]),
    ],
)
def test_overlapping_boxes_of_the_right_volume_are_reported(
    shape: tuple[int, ...], boxes: list[Box]
) -> None:
    assert sum(math.prod(sizes) for _, sizes in boxes) == math.prod(shape)
    assert "overlap" in (problem(shape, *boxes) or "")
