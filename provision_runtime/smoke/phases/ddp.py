"""Phase ddp: what data-parallel training takes for granted.

Do all ranks have the same model? Does a step give the gradients of one process?
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from ...facts.ddp_check import ParametersDiffer, require_same_parameters
from .. import test_values
from ..context import RankContext
from ..outcome import Finding, Outcome, with_finding

if TYPE_CHECKING:
    import torch

INPUTS, HIDDEN, OUTPUTS = 64, 128, 16
SAMPLES_PER_RANK = 8

# float32 has 24 significant bits; the mean over ranks and the mean over the batch add the same
# numbers in another order.
RELATIVE, ABSOLUTE = 1e-4, 1e-6


def run(context: RankContext) -> Outcome:
    """Different models do not break the phase: DDP was not constructed, so no rank waits."""
    from torch.nn.parallel import DistributedDataParallel

    model = _model(context)
    try:
        digest = require_same_parameters(
            model, lambda name, payload: context.exchange(f"ddp/{name}", payload)
        )
    except ParametersDiffer as error:
        difference = error.difference
        return with_finding("parameter-mismatch", difference.message, difference.ranks)
    inputs, targets = _batch(context, "inputs", INPUTS), _batch(context, "targets", OUTPUTS)
    single_process_model = copy.deepcopy(model)
    _backward(single_process_model, inputs, targets)
    context.begin_collective("DistributedDataParallel")
    wrapped = DistributedDataParallel(model, device_ids=[context.gpu] if context.on_gpu else None)
    context.begin_collective("DistributedDataParallel backward")
    first = context.env.rank * SAMPLES_PER_RANK
    of_rank = slice(first, first + SAMPLES_PER_RANK)
    _backward(wrapped, inputs[of_rank], targets[of_rank])
    # Equal to those of one process over the whole batch.
    expected, actual = _gradients(single_process_model), _gradients(model)
    largest_difference = max(
        float((expected[name] - actual[name]).abs().max()) for name in expected
    )
    gradients = {"max_abs_diff": largest_difference, "parameters": len(expected)}
    finding = gradient_finding(expected, actual)
    message = f"gradients equal the single-process ones (max diff {largest_difference:.1e})"
    data = {"parameter_digest": digest, "gradients": gradients}
    return Outcome(message, (finding,) if finding else (), data)


def _model(context: RankContext) -> torch.nn.Module:
    """The same on every rank, unless the user injects a difference."""
    import torch
    from torch import nn

    rank = context.env.rank
    torch.manual_seed(test_values.SEED)
    hidden = HIDDEN + 1 if context.options.fault("wrong-shape", rank) else HIDDEN
    has_bias = not context.options.fault("missing-parameter", rank)
    return nn.Sequential(
        nn.Linear(INPUTS, hidden), nn.ReLU(), nn.Linear(hidden, OUTPUTS, bias=has_bias)
    ).to(context.device)


def _batch(context: RankContext, name: str, columns: int) -> torch.Tensor:
    """The samples of all ranks together, the same on every rank."""
    import torch

    rows = SAMPLES_PER_RANK * context.env.world_size
    flat = torch.empty(rows * columns, dtype=torch.float32, device=context.device)
    test_values.fill(flat, test_values.key(f"ddp/{name}", 0))
    return flat.view(rows, columns) / test_values.LARGEST


def _backward(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    from torch.nn import functional

    functional.mse_loss(model(inputs), targets).backward()


def gradient_finding(
    expected: dict[str, torch.Tensor], actual: dict[str, torch.Tensor]
) -> Finding | None:
    """Compares this rank's gradients with the single-process ones. NaN differs from everything."""
    import torch

    for name, value in expected.items():
        if not torch.allclose(actual[name], value, rtol=RELATIVE, atol=ABSOLUTE):
            difference = float((actual[name] - value).abs().max())
            return Finding(
                "gradient-mismatch",
                f"the gradient of {name} differs by {difference:.3g} from the single-process one",
            )
    return None


def _gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
