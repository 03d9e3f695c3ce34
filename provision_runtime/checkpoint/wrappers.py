"""Modules that wrap another one, and put its names below a prefix: DDP, torch.compile, FSDP.

A wrapper is known by its class, so a layer of the model that happens to be called `module` keeps its
name. Of what wraps nothing now, such as a state dict that was made by hand, only the error speaks.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from . import streams
from .errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    ("lightning.fabric.wrappers", "_FabricModule", "_original_module"),
    ("lightning_fabric.wrappers", "_FabricModule", "_original_module"),
)
PREFIXES = frozenset(attribute for _, _, attribute in WRAPPERS) | {"_forward_module"}
# Of torch's FSDP: a parameter that it cut, as a part of a flat one.
CUT_MARK = "_fsdp_flattened"


def state_of(value: Any, state_dict: Any) -> tuple[Any, Callable[[Any], None]]:
    """The state of a live object with the names that it has without wrappers, and what gives the
    object such a state.

    state_dict: in which an optimizer's FSDP module is looked for. Raises CheckpointError if it is
    not there.
    """
    sharded = _fsdp_state(value, state_dict)
    if sharded is not None:
        return sharded
    state = value.state_dict()
    names = plain_names(value, state)
    if not names:
        return state, value.load_state_dict

    def give(plain: Any) -> None:
        for name, plain_name in names.items():
            state[name] = plain[plain_name]
        value.load_state_dict(state)

    return {plain_name: state[name] for name, plain_name in names.items()}, give


def plain_names(value: Any, names: Iterable[str]) -> dict[str, str]:
    """Each name of a module's state dict, without those of wrappers; empty if there are none."""
    if not hasattr(value, "_modules"):
        return {}
    by_name = {name: _plain_name(value, name) for name in names}
    is_clear = len(set(by_name.values())) == len(by_name)
    return by_name if is_clear and any(by_name[name] != name for name in by_name) else {}


def _plain_name(module: Any, name: str) -> str:
    parts = []
    rest = name.split(".")
    while rest:
        attribute = _wrapped_attribute(module)
        if attribute is not None:
            # Some wrappers leave their name out of the state dict themselves.
            if rest[0] == attribute:
                rest.pop(0)
            module = getattr(module, attribute)
            continue
        part = rest.pop(0)
        parts.append(part)
        module = getattr(module, "_modules", {}).get(part)
    return ".".join(parts)


def _wrapped_attribute(module: Any) -> str | None:
    """Where a wrapper holds the module that it wraps; None if it is no wrapper."""
    for source, name, attribute in WRAPPERS:
        kind = getattr(sys.modules.get(source), name, None)
        if kind is not None and isinstance(module, kind):
            return attribute
    return None


def describe_prefixes(
    missing: Iterable[str], present: Iterable[str], live_paths: Iterable[str]
) -> str | None:
    """Why names are missing that the checkpoint has with, or without, a wrapper's prefix.

    live_paths: of the live objects in the state dict.
    """
    by_plain_name = {_without_prefixes(name): name for name in present}
    pairs = []
    for name in missing:
        committed = by_plain_name.get(_without_prefixes(name))
        if committed is not None:
            pairs.append((name, committed))
    if not pairs:
        return None
    here, committed = pairs[0]
    text = f"the checkpoint has {committed} for {here}"
    if len(pairs) > 1:
        text += f", and {len(pairs) - 1} more names that differ so"
    parts = committed.split(".")
    prefix = next((part for part in parts if part in PREFIXES and part not in here.split(".")), "")
    if not prefix:
        return (
            f"{text}: the names here have a wrapper's prefix; pass the module itself instead of "
            "its state_dict(), then save and load leave the prefix out"
        )
    path = ".".join(parts[: parts.index(prefix)])
    text += f": the prefix {prefix}. is of a wrapper whose state_dict() was saved"
    if path in live_paths:
        text += f'; pass {{"{prefix}": OBJECT}} in the place of {path} to load it'
    return text


def _without_prefixes(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in PREFIXES)


# FSDP before fully_shard: parameters are parts of flat ones, which only torch can take apart.


def _fsdp_state(value: Any, state_dict: Any) -> tuple[Any, Callable[[Any], None]] | None:
    """The sharded state of a module with such FSDP in it, or of its optimizer; None for others."""
    source = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    if source is None:
        return None
    if _holds(value, source.FullyShardedDataParallel):
        functions = _state_functions()
        return functions.get_model_state_dict(value), partial(functions.set_model_state_dict, value)
    parameters = {id(parameter) for parameter in _parameters(value) if hasattr(parameter, CUT_MARK)}
    if not parameters:
        return None
    models = [
        model
        for model in streams.values_in(state_dict)
        if _holds(model, source.FullyShardedDataParallel)
        and parameters & {id(parameter) for parameter in model.parameters()}
    ]
    if models:
        functions = _state_functions()
        return functions.get_optimizer_state_dict(models[0], value), partial(
            functions.set_optimizer_state_dict, models[0], value
        )
    raise CheckpointError(
        f"FullyShardedDataParallel has cut the parameters of a {type(value).__name__}: pass the "
        "model in the same state dict, since the optimizer alone does not know what its parts are"
    )


def _holds(value: Any, kind: type) -> bool:
    return hasattr(value, "_modules") and any(isinstance(part, kind) for part in value.modules())


def _parameters(optimizer: Any) -> Iterable[Any]:
    groups = getattr(optimizer, "param_groups", None)
    for group in groups if isinstance(groups, list) else ():
        yield from group["params"]


def _state_functions() -> Any:
    try:
        from torch.distributed.checkpoint import state_dict
    except ImportError as error:
        raise CheckpointError("saving FullyShardedDataParallel needs torch 2.2 or later") from error
    return state_dict
