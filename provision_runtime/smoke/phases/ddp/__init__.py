"""Phase ddp: what data-parallel training takes for granted, one question per module.

Do all ranks have the same model, does a step give the gradients of one process, does the same seed give the same losses,
does every sample come exactly once, do the workers of a DataLoader deliver it, and how much is lost to the other ranks?
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....facts.ddp_check import ParametersDiffer, require_same_parameters
from ...outcome import Outcome, fold, found
from . import gradients, loading, repeating, sampling, scaling, training

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...session import Session


def run(session: Session) -> Outcome:
    """A model that differs is no reason to end the run: nothing was built of it, and no rank waits anywhere."""
    model = training.model(session)
    try:
        digest = require_same_parameters(
            model, lambda name, said: session.exchange(f"ddp/{name}", said)
        )
    except ParametersDiffer as error:
        return found("parameter-mismatch", error.difference.message, error.difference.ranks)
    parts = {
        "gradients": gradients.check(session, model),
        "repeat": repeating.check(session),
        "sampler": sampling.check(session),
        "loader": loading.check(session),
        "scaling": scaling.check(session),
    }
    data = {"parameter_digest": digest, **{name: part.data for name, part in parts.items()}}
    message = ", ".join(part.message for part in parts.values() if part.message)
    return Outcome(
        message, tuple(finding for part in parts.values() for finding in part.findings), data
    )


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    return fold(outcomes)
