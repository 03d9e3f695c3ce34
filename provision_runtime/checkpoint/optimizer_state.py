"""The state of optimizers as the checkpoint has it, so that there are tensors to read into.

torch makes the state of a parameter at its first step with a gradient. Before, the optimizer's state
dict has none, and a load would silently leave it out; with other parameters frozen it has another.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from .memory import dtype_of
from .nested import Expansion

if TYPE_CHECKING:
    import torch

    from .manifest import Manifest


def adapt(content: Manifest, optimizer: Any, state_dict: Any, name: str) -> None:
    """Changes the state dict of an optimizer whose state has other names in the checkpoint."""
    if not hasattr(optimizer, "param_groups") or not isinstance(state_dict, dict):
        return
    state = state_dict.get("state")
    if not isinstance(state, dict) or not all(isinstance(number, int) for number in state):
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    names = [*content.tensors, *content.objects]
    if not any(full_name.startswith(f"{name}.param_groups") for full_name in names):
        return  # the checkpoint has nothing of it
    prefix = f"{name}.state."
    by_number: defaultdict[int, dict[tuple[str, ...], str]] = defaultdict(dict)
    for full_name in names:
        digits, *field = full_name[len(prefix) :].split(".")
        is_state = full_name.startswith(prefix) and digits.isdigit() and field
        if is_state and int(digits) < len(parameters):
            by_number[int(digits)][tuple(field)] = full_name
    for number in {*state, *by_number}:
        fields = by_number[number]
        live = Expansion({f"{prefix}{number}": state.get(number, {})}).values
        if not fields:
            del state[number]
        elif live.keys() != set(fields.values()):
            state[number] = _nest(fields, parameters[number], content)


def _nest(fields: dict[tuple[str, ...], str], parameter: torch.Tensor, content: Manifest) -> Any:
    """The values of some names, nested as their paths say: a list where these count from 0."""
    if () in fields:
        name = fields[()]
        return _empty(content, name, parameter) if name in content.tensors else None
    by_key: defaultdict[str, dict[tuple[str, ...], str]] = defaultdict(dict)
    for path, name in fields.items():
        by_key[path[0]][path[1:]] = name
    nested = {key: _nest(inner, parameter, content) for key, inner in by_key.items()}
    numbers = [str(number) for number in range(len(nested))]
    if nested.keys() == set(numbers):
        return [nested[number] for number in numbers]
    return nested


def _empty(content: Manifest, name: str, parameter: torch.Tensor) -> torch.Tensor:
    """A tensor for one value: sharded as the parameter if it has its shape."""
    import torch

    committed = content.tensors[name]
    dtype = dtype_of(committed.dtype)
    if committed.shape == tuple(parameter.shape):
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return torch.empty(committed.shape, dtype=dtype, device="cpu")
