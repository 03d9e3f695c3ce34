"""The state of an optimizer that has taken no step yet: made as the checkpoint has it, so that there
are tensors to read into.

torch fills an optimizer's state at its first step. Before, its state dict has none, and a load would
silently leave it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import dcp
from .plan import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from .manifest import Manifest


def add_missing_state(
    state_dict: Mapping[str, Any], expanded: Mapping[str, Any], content: Manifest
) -> None:
    """Give each optimizer in the state dict that has no state yet the tensors of the checkpoint.

    expanded: the state dict with state dicts in place of objects; changed in place.
    """
    for key, value in state_dict.items():
        state = expanded[key]
        is_new = isinstance(state, dict) and state.get("state") == {} and "param_groups" in state
        if is_new and hasattr(value, "param_groups"):
            state["state"] = _state(value, name_of((key, "state")), content)


def _state(optimizer: Any, prefix: str, content: Manifest) -> dict[int, dict[str, Any]]:
    """By the number of the parameter, as the optimizer's own state dict has it."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for name in (*content.tensors, *content.objects):
        if not name.startswith(f"{prefix}."):
            continue
        number, _, field = name[len(prefix) + 1 :].partition(".")
        if not number.isdigit() or int(number) >= len(parameters) or not field or "." in field:
            continue  # another kind of optimizer: match reports what is missing
        value = None
        if name in content.tensors:
            value = _empty(content, name, parameters[int(number)])
        state.setdefault(int(number), {})[field] = value
    return state


def _empty(content: Manifest, name: str, parameter: torch.Tensor) -> torch.Tensor:
    """A tensor for one value: sharded as the parameter if it has its shape."""
    import torch

    committed = content.tensors[name]
    dtype = dcp.dtype_of(committed.dtype)
    if committed.shape == tuple(parameter.shape):
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return torch.empty(committed.shape, dtype=dtype, device="cpu")
