"""The gradients of a step over all ranks are those of one process over the whole batch, and the same on every rank."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from ....facts.ddp_check import data_digest
from ...outcome import Finding, Outcome
from . import training

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ...session import Session

# float32 keeps 24 bits; the mean over ranks and the mean over the batch add the same numbers in another order.
RELATIVE, ABSOLUTE = 1e-4, 1e-6


def check(session: Session, model: torch.nn.Module) -> Outcome:
    inputs, targets = training.batch(session)
    alone = copy.deepcopy(model)
    training.backward(alone, inputs, targets)
    wrapped = training.wrap(session, model)
    session.enter("DistributedDataParallel backward")
    training.backward(wrapped, training.share(session, inputs), training.share(session, targets))
    expected, given = _gradients(alone), _gradients(model)
    digests = session.exchange("ddp/gradients", data_digest(given.values()))
    apart = max(float((expected[name] - given[name]).abs().max()) for name in expected)
    data = {"max_abs_diff": apart, "rtol": RELATIVE, "atol": ABSOLUTE, "parameters": len(expected)}
    findings = [
        finding for finding in (unlike_alone(expected, given), unlike_others(digests)) if finding
    ]
    return Outcome(
        f"gradients equal the single-process ones (max diff {apart:.1e})", tuple(findings[:1]), data
    )


def unlike_alone(
    expected: dict[str, torch.Tensor], given: dict[str, torch.Tensor]
) -> Finding | None:
    """Each rank for itself: `expected` it worked out alone. NaN is unlike everything."""
    import torch

    for name, value in expected.items():
        if not torch.allclose(given[name], value, rtol=RELATIVE, atol=ABSOLUTE):
            off = float((given[name] - value).abs().max())
            return Finding(
                "gradient-mismatch",
                f"the gradient of {name} is {off:.3g} off the single-process one",
            )
    return None


def unlike_others(digests: Sequence[str]) -> Finding | None:
    """Within the tolerance each may be; but all ranks must have the same bits, or their models drift apart."""
    usual = max(digests, key=digests.count)
    other = tuple(rank for rank, digest in enumerate(digests) if digest != usual)
    if not other:
        return None
    if digests.count(usual) * 2 <= len(digests):  # either may be the wrong one
        return Finding(
            "gradient-mismatch",
            "gradients differ in their last bits after the same step",
            tuple(range(len(digests))),
        )
    message = f"gradients differ in their last bits from those of rank {digests.index(usual)} after the same step"
    return Finding("gradient-mismatch", message, other)


def _gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
