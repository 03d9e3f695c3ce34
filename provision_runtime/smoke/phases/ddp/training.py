"""The small model and its batches, one step by hand, and DistributedDataParallel around it.

The step is taken without torch.optim: importing it pulls in the compiler in newer releases, for seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import test_values

if TYPE_CHECKING:
    import torch

    from ...session import Session

INPUTS, HIDDEN, OUTPUTS = 64, 128, 16
SAMPLES_PER_RANK = 8
RATE = 0.1


def model(session: Session) -> torch.nn.Module:
    """The same on every rank, unless the user rehearses that it is not."""
    import torch
    from torch import nn

    rank = session.place.rank
    torch.manual_seed(session.options.seed)
    hidden = HIDDEN + 1 if session.options.fault("wrong-shape", rank) else HIDDEN
    has_bias = not session.options.fault("missing-parameter", rank)
    return nn.Sequential(
        nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, OUTPUTS, bias=has_bias)
    ).to(session.device)


def batch(session: Session) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of all ranks together, the same on every rank."""
    samples = SAMPLES_PER_RANK * session.place.world_size
    return _numbers(session, "inputs", samples, INPUTS), _numbers(
        session, "targets", samples, OUTPUTS
    )


def share(session: Session, whole: torch.Tensor) -> torch.Tensor:
    """This rank's samples of a batch."""
    start = session.place.rank * SAMPLES_PER_RANK
    return whole[start : start + SAMPLES_PER_RANK]


def wrap(session: Session, inner: torch.nn.Module) -> torch.nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    session.enter("DistributedDataParallel")
    return DistributedDataParallel(inner, device_ids=[session.gpu] if session.on_gpu else None)


def backward(inner: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss, its gradients in the parameters."""
    from torch.nn import functional

    loss: torch.Tensor = functional.mse_loss(inner(inputs), targets)
    loss.backward()
    return loss.detach()


def descend(inner: torch.nn.Module) -> None:
    import torch

    with torch.no_grad():
        for parameter in inner.parameters():
            parameter.sub_(parameter.grad, alpha=RATE)
            parameter.grad = None


def _numbers(session: Session, what: str, rows: int, columns: int) -> torch.Tensor:
    import torch

    flat = torch.empty(rows * columns, dtype=torch.float32, device=session.device)
    test_values.fill(flat, test_values.key(session.options.seed, f"ddp/{what}", 0))
    return flat.view(rows, columns) / test_values.LARGEST
