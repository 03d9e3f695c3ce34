"""Nested state dicts: their values with their paths, and the live objects in them.

Modules, optimizers and whatever else has `state_dict` and `load_state_dict` may lie at any depth of
dicts, lists and tuples. A save takes their state dicts in their places, a load fills these and
gives them back to the same objects.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Container, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Callable

from . import streams, wrappers
from .errors import CheckpointError

# There may be millions of these, and none is expanded.
PLAIN = (int, float, str, bool, type(None))
# In the place of what is being expanded.
OPEN = object()


class Expansion:
    """A state dict with the state dict of each live object in its place.

    tree: in it a tuple that holds live objects, or sharded tensors, is a list. Of the containers
    that hold no such object or tuple it has the caller's own; copies: ids of the others. objects:
    the path and the state of each live object; an object at two places has one state.

    for_load: to be filled, so that an object may have a blank instead of its state.

    Raises CheckpointError for what has no name, or no end.
    """

    def __init__(self, state_dict: Mapping[str, object], for_load: bool = False) -> None:
        if not isinstance(state_dict, Mapping):
            raise CheckpointError(
                f"the state dict is of type {type(state_dict).__name__}: "
                "give a dict of names and values"
            )
        self.copies: set[int] = set()
        self.objects: list[tuple[tuple[Any, ...], Any, Any]] = []
        self._state_dict = state_dict
        self._for_load = for_load
        # By the id of what is expanded, which is in the value too: so no other gets this id.
        self._nodes: dict[int, tuple[Any, Any]] = {id(state_dict): (state_dict, OPEN)}
        # The state of each live object, and what gives it another.
        self._states: dict[int, tuple[Any, Callable[[Any], None]]] = {}
        self._restored: set[int] = set()
        self.tree: dict[str, object] = {}
        for key, value in entries(state_dict):
            _check_key(key, ())
            self.tree[key] = self._expand(value, (key,))
        self.copies.add(id(self.tree))

    def restore(self) -> None:
        """Gives the states in the tree to the live objects, and its other values to their
        containers.
        """
        self._restore(self._state_dict, self.tree)

    def _expand(self, value: Any, path: tuple[Any, ...]) -> Any:
        is_live = is_stateful(value)
        if not is_live and not isinstance(value, (MutableMapping, list, tuple)):
            return value
        _, node = self._nodes.get(id(value), (None, None))
        if node is OPEN:
            raise CheckpointError(f"{name_of(path)} holds itself")
        if node is None:
            self._nodes[id(value)] = value, OPEN
            if is_live:
                self._states[id(value)] = self._state_of(value)
                node = self._expand(self._states[id(value)][0], path)
            else:
                node = self._expand_container(value, path)
            self._nodes[id(value)] = value, node
        if is_live:
            self.objects.append((path, value, node))
        return node

    def _state_of(self, value: Any) -> tuple[Any, Callable[[Any], None]]:
        if not _has_method(value, "blank_state"):
            return wrappers.state_of(value)
        state = value.blank_state() if self._for_load else value.state_dict()
        self.copies.add(id(state))  # so that each rank's is a value of its own before torch 2.4 too
        return state, value.load_state_dict

    def _expand_container(self, value: Any, path: tuple[Any, ...]) -> Any:
        inner = {}
        for key, item in entries(value):
            _check_key(key, path)
            if type(item) not in PLAIN:
                node = self._expand(item, (*path, key))
                if node is not item:
                    inner[key] = node
        is_sharded = isinstance(value, tuple) and any(map(is_distributed, streams.values_in(value)))
        if not inner and not is_sharded:
            return value
        copy = {key: inner.get(key, item) for key, item in entries(value)}
        node = copy if isinstance(value, MutableMapping) else list(copy.values())
        self.copies.add(id(node))
        return node

    def _restore(self, live: Any, node: Any) -> Any:
        """What belongs in the place of `live`: itself, unless it is a plain value or a tuple."""
        if id(live) in self._states:
            if id(live) not in self._restored:
                self._restored.add(id(live))
                state, give = self._states[id(live)]
                give(self._restore(state, node))
            return live
        if id(node) not in self.copies:
            return node
        changed = {}
        for key, item in entries(live):
            restored = self._restore(item, node[key])
            if restored is not item:
                changed[key] = restored
        if isinstance(live, tuple):
            if not changed:
                return live
            return _tuple_like(live, [changed.get(key, item) for key, item in entries(live)])
        for key, restored in changed.items():
            live[key] = restored
        return live


def _tuple_like(example: Any, items: list[Any]) -> Any:
    return example._make(items) if hasattr(example, "_make") else type(example)(items)


def _check_key(key: Any, path: Sequence[Any]) -> None:
    """Raises CheckpointError for a key that has another text in the next process."""
    if type(key) in PLAIN:
        return
    import torch

    is_live = isinstance(key, torch.Tensor) or _has_method(key, "state_dict")
    if is_live or f"{id(key):x}" in str(key):
        raise CheckpointError(
            f"{name_of(path) or 'the state dict'} has a key of type {type(key).__name__}, which "
            "cannot be part of a name: use strings and numbers"
        )


def is_stateful(value: Any) -> bool:
    """As torch.distributed.checkpoint.stateful.Stateful has it: a module or an optimizer, for
    example.
    """
    return _has_method(value, "state_dict") and _has_method(value, "load_state_dict")


def _has_method(value: Any, name: str) -> bool:
    """Not of a class; and of a dict only by its class, since it may take any attribute for a key."""
    holder = type(value) if isinstance(value, Mapping) else value
    return not isinstance(value, type) and callable(getattr(holder, name, None))


def is_distributed(value: Any) -> bool:
    """Whether it is a DTensor, a ShardedTensor or another type that knows which part of it is
    local.

    Plain tensors are planned without torch's planner, whose import takes a second and more.
    """
    marks = ("placements", "local_shards", "__create_write_items__")
    return any(hasattr(type(value), mark) for mark in marks)


def holds_tensors(container: Any) -> bool:
    import torch

    return any(isinstance(value, torch.Tensor) for _, value in values(container))


def values(
    container: Any,
    path: tuple[Any, ...] = (),
    as_before_2_4: bool = False,
    copies: Container[int] = (),
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The values in nested dicts and lists, with their paths, split as torch's planner splits them.

    A list without tensors or dicts in it is one value; before torch 2.4 so is a dict without
    tensors, unless it holds a live object (copies: of an Expansion). Tuples are values.
    """
    is_container = isinstance(container, (MutableMapping, list))
    if is_container and (not path or _is_split(container, as_before_2_4, copies)):
        for key, value in entries(container):
            name = str(key) if isinstance(container, Mapping) else key
            yield from values(value, (*path, name), as_before_2_4, copies)
    else:
        yield path, container


def entries(container: Any) -> Iterable[tuple[Any, Any]]:
    """Keys and values of a dict; numbers and elements of a list or tuple."""
    return container.items() if isinstance(container, Mapping) else enumerate(container)


def _is_split(container: Any, as_before_2_4: bool, copies: Container[int]) -> bool:
    import torch

    if id(container) in copies or (isinstance(container, MutableMapping) and not as_before_2_4):
        return True
    for _, value in entries(container):
        if isinstance(value, torch.Tensor):
            return True
        if isinstance(value, (MutableMapping, list)) and _is_split(value, as_before_2_4, copies):
            return True
    return False


def name_of(path: Sequence[Any]) -> str:
    """The name that torch's planner gives to a path."""
    return ".".join(map(str, path))


class _LiveObjectFinder(pickle.Pickler):
    """Raises CheckpointError at the first tensor or live object."""

    def reducer_override(self, value: Any) -> Any:
        import torch

        if isinstance(value, torch.Tensor) or _has_method(value, "state_dict"):
            raise CheckpointError(type(value).__name__)
        return NotImplemented


def hidden_state(name: str, value: Any) -> str | None:
    """Why a load, which puts another object in the place of this one, would lose what it holds:
    tensors, or live objects that others refer to too. None if it holds neither, or only tensors in
    nested dicts, lists and tuples, which `merged` fills.
    """
    import torch

    if isinstance(value, (Mapping, list, tuple)):
        for key, item in entries(value):
            problem = None if type(item) in PLAIN else hidden_state(f"{name}.{key}", item)
            if problem:
                return problem
        return None
    if isinstance(value, torch.Tensor):
        return None
    kind = type(value).__name__
    try:
        _LiveObjectFinder(io.BytesIO(), protocol=5, buffer_callback=lambda _: None).dump(value)
    except CheckpointError as error:
        what = "has no load_state_dict" if kind == str(error) else f"holds a {error}"
        return (
            f"{name} is of type {kind} and {what}, so `load` cannot fill it: give it state_dict and "
            "load_state_dict, or pass its parts in dicts, lists and tuples"
        )
    except Exception as error:  # pickle lets through whatever an object's own methods raise
        return f"{name} cannot be pickled: {type(error).__name__}: {error}"
    return None


def merged(live: Any, value: Any) -> Any:
    """What belongs in the place of `live`, a plain value or nested ones, once `value` was loaded for
    it: tensors are filled, and in a dict stays what only `live` has.
    """
    import torch

    if isinstance(live, torch.Tensor) and isinstance(value, torch.Tensor):
        with torch.no_grad():
            return live.copy_(value)
    if isinstance(live, tuple) and any(True for _ in streams.tensors_in(live)):
        return _tuple_like(live, [merged(*pair) for pair in zip(live, value)])
    if isinstance(live, MutableMapping) and isinstance(value, Mapping):
        keys = {str(key): key for key in live}
        for key, item in value.items():
            live_key = keys.get(str(key), key)
            live[live_key] = merged(live.get(live_key), item)
        return live
    if isinstance(live, list) and isinstance(value, list) and len(live) == len(value):
        live[:] = [merged(*pair) for pair in zip(live, value)]
        return live
    return value
