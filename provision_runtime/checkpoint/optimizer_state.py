"""The state of optimizers as the checkpoint has it, so that there are tensors to read into.

torch makes the state of a parameter at its first step with a gradient. Before, the optimizer's state
dict has none, and a load would silently leave it out; with other parameters frozen it has another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import dcp
from .nested import name_of, values

if TYPE_CHECKING:
    import torch

    from .manifest import Manifest
    from .nested import Expansion


def adapt_optimizers(expansion: Expansion, content: Manifest) -> None:
    """Changes the state dict of each optimizer whose state has other names in the checkpoint."""
    for path, optimizer, node in expansion.objects:
        is_optimizer = hasattr(optimizer, "param_groups") and isinstance(node, dict)
        if is_optimizer and isinstance(node.get("state"), dict) and "param_groups" in node:
            _adapt(node, optimizer, path, content)


def _adapt(
    node: dict[str, dict[int, object]], optimizer: Any, path: tuple[Any, ...], content: Manifest
) -> None:
    prefix = name_of((*path, "state"))
    if prefix in content.objects:  # of torch before 2.4, and without tensors
        node["state"] = {}
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    by_number: dict[int, dict[tuple[str, ...], str]] = {}
    has_groups = False
    for name in (*content.tensors, *content.objects):
        has_groups = has_groups or name.startswith(name_of((*path, "param_groups")))
        digits, *field = name[len(prefix) + 1 :].split(".")
        is_state = name.startswith(f"{prefix}.") and digits.isdigit() and field
        if is_state and int(digits) < len(parameters):
            by_number.setdefault(int(digits), {})[tuple(field)] = name
    state = node["state"]
    if not has_groups or not all(isinstance(number, int) for number in state):
        return  # the checkpoint has nothing of it; or its state is by other names
    for number in {*state, *by_number}:
        fields = by_number.get(number, {})
        names = {name_of(inner) for inner, _ in values(state.get(number, {}), (prefix, number))}
        if not fields:
            del state[number]
        elif names != set(fields.values()):
            state[number] = _nest(fields, parameters[number], content)


def _nest(fields: dict[tuple[str, ...], str], parameter: torch.Tensor, content: Manifest) -> Any:
    """The values of some names, nested as their paths say: a list where these count from 0."""
    if () in fields:
        name = fields[()]
        return _empty(content, name, parameter) if name in content.tensors else None
    by_key: dict[str, dict[tuple[str, ...], str]] = {}
    for path, name in fields.items():
        by_key.setdefault(path[0], {})[path[1:]] = name
    nested = {key: _nest(inner, parameter, content) for key, inner in by_key.items()}
    numbers = [str(number) for number in range(len(nested))]
    if nested.keys() == set(numbers):
        return [nested[number] for number in numbers]
    return nested


def _empty(content: Manifest, name: str, parameter: torch.Tensor) -> torch.Tensor:
    """A tensor for one value: sharded as the parameter if it has its shape."""
    import torch

    committed = content.tensors[name]
    dtype = dcp.dtype_of(committed.dtype)
    if committed.shape == tuple(parameter.shape):
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return torch.empty(committed.shape, dtype=dtype, device="cpu")
