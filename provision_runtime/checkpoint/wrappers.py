"""Modules that wrap another one, and put its names below a prefix: DDP, torch.compile, FSDP.

A wrapper is known by its class, so a layer of the model that happens to be called `module` keeps its
name. Of what wraps nothing now, such as a state dict that was made by hand, only the error speaks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Callable

from .errors import CheckpointError

# The module and the name of each class, and the attribute in which it holds the wrapped module.
# None is imported here: an object of a class exists only after its import.
WRAPPERS = (
    ("torch.nn.parallel.distributed", "DistributedDataParallel", "module"),
    ("torch.nn.parallel.data_parallel", "DataParallel", "module"),
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    (
        "torch.distributed.fsdp.fully_sharded_data_parallel",
        "FullyShardedDataParallel",
        "_fsdp_wrapped_module",
    ),
    (
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
        "ActivationWrapper",
        "_checkpoint_wrapped_module",
    ),
)
PREFIXES = frozenset(attribute for _, _, attribute in WRAPPERS)
# Of torch's FSDP: a parameter that it cut, as a part of a flat one.
CUT_MARK = "_fsdp_flattened"


def state_of(value: Any) -> tuple[Any, Callable[[Any], None]]:
    """The state of a live object with the names that it has without wrappers, and what gives the
    object such a state.

    Raises CheckpointError for an optimizer of FullyShardedDataParallel, whose parameters are parts of
    flat ones: each rank's would be saved as if it were the whole.
    """
    import torch

    for group in value.param_groups if isinstance(value, torch.optim.Optimizer) else ():
        if any(hasattr(parameter, CUT_MARK) for parameter in group["params"]):
            raise CheckpointError(
                f"FullyShardedDataParallel has cut the parameters of a {type(value).__name__}. Move to "
                "fully_shard (FSDP2), whose optimizer is saved as it is; or save {'model': m, 'optim': "
                "o} of m, o = get_state_dict(model, optimizer), load into the same, and call "
                "set_state_dict(model, optimizer, model_state_dict=m, optim_state_dict=o), both of "
                "torch.distributed.checkpoint.state_dict"
            )
    state = value.state_dict()
    names = plain_names(value, state)
    if not names:
        return state, value.load_state_dict

    def give(plain: Any) -> None:
        state.update((name, plain[names[name]]) for name in names)
        value.load_state_dict(state)

    return {names[name]: item for name, item in state.items()}, give


def plain_names(module: Any, names: Iterable[str]) -> dict[str, str]:
    """Each name of a module's state dict, without those of wrappers; empty if there are none."""
    if not hasattr(module, "_modules"):
        return {}
    by_name = {name: _plain_name(module, name) for name in names}
    plain = set(by_name.values())
    return {} if plain == by_name.keys() or len(plain) < len(by_name) else by_name


def _plain_name(module: Any, name: str) -> str:
    parts = []
    rest = name.split(".")
    while rest:
        attribute = _wrapped_attribute(module)
        if attribute is None:
            parts.append(rest.pop(0))
            module = getattr(module, "_modules", {}).get(parts[-1])
            continue
        # Some wrappers leave their name out of the state dict themselves.
        if rest[0] == attribute:
            rest.pop(0)
        module = getattr(module, attribute)
    return ".".join(parts)


def _wrapped_attribute(module: Any) -> str | None:
    """Where a wrapper holds the module that it wraps; None if it is no wrapper."""
    for source, name, attribute in WRAPPERS:
        kind = getattr(sys.modules.get(source), name, None)
        if kind is not None and isinstance(module, kind):
            return attribute
    return None


def describe_prefixes(missing: Iterable[str], present: Iterable[str]) -> list[str]:
    """Why names are missing that the checkpoint has with, or without, a wrapper's prefix; empty if it
    has none of them.
    """
    by_plain_name = {_without_prefixes(name): name for name in present}
    for name in missing:
        committed = by_plain_name.get(_without_prefixes(name))
        if committed:
            return [
                f"the checkpoint has {committed} for {name}: only the prefix of a wrapper differs. "
                "Pass the module instead of its state_dict(); for a checkpoint with the prefix, pass "
                '{"module": model} (or {"_orig_mod": model}) in the place of the model'
            ]
    return []


def _without_prefixes(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in PREFIXES)
