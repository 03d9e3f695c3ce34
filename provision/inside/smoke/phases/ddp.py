"""Phase ddp: one step of DistributedDataParallel gives the gradients of one process over the whole batch."""

from __future__ import annotations

import copy
import ctypes
import hashlib
from typing import TYPE_CHECKING, Any

from .. import values
from ..outcome import Outcome, fold, found

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ..session import Session

INPUTS, HIDDEN, OUTPUTS = 64, 128, 16
SAMPLES_PER_RANK = 8
# float32 keeps 24 bits; the mean over ranks and the mean over the batch add the same numbers in another order.
RELATIVE, ABSOLUTE = 1e-4, 1e-6
RATE = 0.1


def run(session: Session) -> Outcome:
    import torch

    torch.manual_seed(session.options.seed)
    model = _model().to(session.device)
    difference = first_difference(session.exchange("parameters", signature(model)))
    if difference:
        return found("parameter-mismatch", difference, broken=True)
    batch, target = _batch(session)
    alone = _gradients_alone(copy.deepcopy(model), batch, target)
    together = _gradients_together(session, model, batch, target)
    return _judge(session, alone, together)


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    return fold(outcomes)


def signature(model: torch.nn.Module) -> list[list[Any]]:
    """Name, shape and type of every parameter: what DDP takes for granted to be equal."""
    return [[name, list(value.shape), str(value.dtype)] for name, value in model.named_parameters()]


def first_difference(signatures: Sequence[list[list[Any]]]) -> str | None:
    """Between rank 0's parameters and the first rank that has others, in words."""
    for rank, other in enumerate(signatures):
        if other != signatures[0]:
            mine = next((entry for entry in signatures[0] if entry not in other), "nothing more")
            theirs = next((entry for entry in other if entry not in signatures[0]), "nothing more")
            return f"parameters differ: rank 0 has {mine}, rank {rank} has {theirs}"
    return None


def _model() -> torch.nn.Module:
    from torch import nn

    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS))


def _batch(session: Session) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole batch, on every rank the same."""
    samples = SAMPLES_PER_RANK * session.place.world_size
    return _numbers(session, "inputs", samples, INPUTS), _numbers(session, "targets", samples, OUTPUTS)


def _numbers(session: Session, what: str, rows: int, columns: int) -> torch.Tensor:
    import torch

    flat = torch.empty(rows * columns, dtype=torch.float32, device=session.device)
    values.fill(flat, values.key(session.options.seed, f"ddp/{what}", 0))
    return flat.view(rows, columns) / values.LARGEST


def _backward(model: torch.nn.Module, batch: torch.Tensor, target: torch.Tensor) -> None:
    from torch.nn import functional

    functional.mse_loss(model(batch), target).backward()


def _gradients_alone(model: torch.nn.Module, batch: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
    _backward(model, batch, target)
    return {name: value.grad for name, value in model.named_parameters()}


def _gradients_together(session: Session, model: torch.nn.Module, batch: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradients after a DDP step in which this rank saw only its share of the batch."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    session.enter("DistributedDataParallel")
    wrapped = DistributedDataParallel(model, device_ids=[session.gpu] if session.on_gpu else None)
    share = slice(session.place.rank * SAMPLES_PER_RANK, (session.place.rank + 1) * SAMPLES_PER_RANK)
    session.enter("backward")
    _backward(wrapped, batch[share], target[share])
    # The step itself, by hand: importing torch.optim pulls in the compiler in newer releases, for seconds.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.sub_(parameter.grad, alpha=RATE)
    return {name: value.grad for name, value in model.named_parameters()}


def _judge(session: Session, alone: dict[str, torch.Tensor], together: dict[str, torch.Tensor]) -> Outcome:
    import torch

    apart = {name: float((alone[name] - together[name]).abs().max()) for name in alone}
    wrong = [n for n in alone if not torch.allclose(together[n], alone[n], rtol=RELATIVE, atol=ABSOLUTE)]
    digests = session.exchange("gradients", digest(list(together.values())))
    unequal = [rank for rank, other in enumerate(digests) if other != digests[0]]
    data = {"max_abs_diff": max(apart.values()), "rtol": RELATIVE, "atol": ABSOLUTE, "parameters": len(alone)}
    if wrong:
        return found("gradient-mismatch", f"gradient of {wrong[0]} is {apart[wrong[0]]:.3g} off the single-process one", data=data)
    if unequal:
        return found("gradient-mismatch", "gradients differ from rank 0's after the step", unequal, data=data)
    return Outcome(message=f"gradients equal the single-process ones (max diff {data['max_abs_diff']:.1e})", data=data)


def digest(tensors: list[torch.Tensor]) -> str:
    """Of the bytes themselves, without numpy: an environment need not have it."""
    found = hashlib.sha256()
    for tensor in tensors:
        held = tensor.detach().cpu().contiguous()
        found.update(ctypes.string_at(held.data_ptr(), held.numel() * held.element_size()))
    return found.hexdigest()
