"""The same seed twice gives the same losses and the same model, bit for bit, on the CPU.

On a GPU the two runs are made and reported, but not judged: kernels that add with atomics may differ in the last bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....facts.ddp_check import data_digest
from ...outcome import Finding, Outcome
from . import training

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...session import Session

STEPS = 5
STEPS_QUICK = 2


def check(session: Session) -> Outcome:
    first, second = train(session), train(session)
    finding = None if session.on_gpu else unlike(first, second)
    data = {
        "steps": len(first) - 1,
        "equal": first == second,
        "judged": not session.on_gpu,
        "last_loss": float.fromhex(first[-2]),
    }
    return Outcome(
        "" if session.on_gpu else "the same seed gives the same losses",
        (finding,) if finding else (),
        data,
    )


def train(session: Session) -> list[str]:
    """The losses of a few steps from the seed on, exactly as they are, and a digest of the model after them."""
    import torch

    inner = training.model(session)
    wrapped = training.wrap(session, inner)
    inputs, targets = (training.share(session, whole) for whole in training.batch(session))
    losses = []
    for step in range(STEPS_QUICK if session.options.quick else STEPS):
        session.enter("DistributedDataParallel backward", f"step {step}")
        # Noise from torch's own generator: the seed must hold for it too.
        noisy = inputs + torch.rand(inputs.shape).to(inputs.device)
        losses.append(float(training.backward(wrapped, noisy, targets)).hex())
        training.descend(inner)
    return [*losses, data_digest(inner.parameters())]


def unlike(first: Sequence[str], second: Sequence[str]) -> Finding | None:
    for step, (one, other) in enumerate(zip(first, second)):
        if one != other:
            is_loss = step < len(first) - 1
            values = (
                f"{float.fromhex(one)!r} and {float.fromhex(other)!r}"
                if is_loss
                else "not the same bits"
            )
            what = f"the loss of step {step}" if is_loss else "the model after the last step"
            return Finding("not-deterministic", f"the same seed gave twice {what}: {values}")
    return None
