"""A matrix product whose right value is known: silent corruption shows as a wrong element.

The left matrix is random. The right one adds a few of its columns, each shifted and signed, so the
product can be made without multiplying. All values are small integers: every type holds every
partial sum exactly, in whatever order it is added up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# 8 shifted columns of values up to 15: sums up to 120, which bfloat16's 8 bits hold.
SHIFTS = 8
LARGEST = 15


def matrices(
    side: int, dtype: torch.dtype, device: str, seed: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Left, right, and their product."""
    import torch

    generator = torch.Generator(device="cpu").manual_seed(seed)
    count = min(SHIFTS, side)
    shifts = torch.randperm(side, generator=generator)[:count].tolist()
    signs = (torch.randint(0, 2, (count,), generator=generator) * 2 - 1).tolist()
    values = torch.randint(-LARGEST, LARGEST + 1, (side, side), generator=generator)
    left = values.to(device=device, dtype=dtype)
    right = torch.zeros(side, side, dtype=dtype, device=device)
    product = torch.zeros_like(left)
    columns = torch.arange(side, device=device)
    for shift, sign in zip(shifts, signs):
        right[(columns + shift) % side, columns] = sign
        product += sign * torch.roll(left, -shift, dims=1)
    return left, right, product


def wrong_elements(left: torch.Tensor, right: torch.Tensor, product: torch.Tensor) -> int:
    """How many elements of left x right are not the product's."""
    import torch

    return int((torch.mm(left, right) != product).sum())
