"""Scaling efficiency from 1 to n ranks: the time of a step alone, by the time of the same step with all ranks.

Weak scaling: every rank keeps its batch. It is reported, never judged: on a CPU the ranks share cores, and for GPUs no
published value fits a model this small.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ... import timing
from ...outcome import Outcome
from . import training

if TYPE_CHECKING:
    import torch

    from ...session import Session

WIDTH = 512
LAYERS = 4
BATCH = 64
WARM_UP = 2
STEPS = 10


def check(session: Session) -> Outcome:
    """Rank 0 measures alone first, while the others wait in an exchange. Not in the quick profile."""
    if session.options.quick or session.place.world_size == 1:
        return Outcome(
            data={
                "efficiency": None,
                "note": "not measured" if session.options.quick else "one rank: not applicable",
            }
        )
    inner = _model(session)
    alone = session.exchange(
        "ddp/alone", _median_s(session, inner) if session.place.rank == 0 else None
    )[0]
    wrapped = training.wrap(session, inner)
    session.enter("DistributedDataParallel backward", f"{WARM_UP + STEPS} steps")
    together = max(session.exchange("ddp/together", _median_s(session, wrapped)))
    return Outcome(
        f"scaling efficiency {alone / together:.2f}",
        data=summarize(alone, together, session.place.world_size),
    )


def summarize(alone_s: float, together_s: float, ranks: int) -> dict[str, Any]:
    return {
        "ranks": ranks,
        "step_alone_s": round(alone_s, 6),
        "step_together_s": round(together_s, 6),
        "efficiency": round(alone_s / together_s, 4),
        "note": "weak scaling, reported and not judged",
    }


def _model(session: Session) -> torch.nn.Module:
    from torch import nn

    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers).to(session.device)


def _median_s(session: Session, model: torch.nn.Module) -> float:
    import torch

    inputs = torch.ones(BATCH, WIDTH, device=session.device)
    taken = []
    for _ in range(WARM_UP + STEPS):
        started = time.perf_counter()
        training.backward(model, inputs, inputs)
        if session.on_gpu:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return timing.median(taken[WARM_UP:])
