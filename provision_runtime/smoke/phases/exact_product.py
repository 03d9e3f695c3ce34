"""A matrix product whose right value is known: silent corruption shows as a wrong element.

The left matrix is random. The right one subtracts one permutation of its columns from another, so the
product can be made without multiplying. All values are small integers: every type holds every partial
sum exactly, in whatever order it is added up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Differences up to 240, which bfloat16's 8 bits hold.
LARGEST = 120


def matrices(
    side: int, dtype: torch.dtype, device: str, seed: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Left, right, and their product."""
    import torch

    generator = torch.Generator(device="cpu").manual_seed(seed)
    values = torch.randint(-LARGEST, LARGEST + 1, (side, side), generator=generator)
    left = values.to(device=device, dtype=dtype)
    right = torch.zeros(side, side, dtype=dtype, device=device)
    columns = torch.arange(side, device=device)
    added = torch.randperm(side, generator=generator).to(device)
    removed = added.roll(1)
    right[added, columns] += 1
    right[removed, columns] -= 1
    return left, right, left[:, added] - left[:, removed]


def wrong_elements(left: torch.Tensor, right: torch.Tensor, product: torch.Tensor) -> int:
    import torch

    return int((torch.mm(left, right) != product).sum())
