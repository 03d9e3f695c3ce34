"""Nested state dicts: their values by name, and the live objects in them.

Modules, optimizers and whatever else has `state_dict` and `load_state_dict` may lie at any depth of
dicts, lists and tuples. A save takes their state dicts in their places, a load fills these and
gives them back to the same objects.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Callable

from . import wrappers
from .errors import CheckpointError

# There may be millions of these, and none is expanded.
PLAIN = (int, float, str, bool, type(None))


class Expansion:
    """The values of a state dict, with the state dict of each live object in its place.

    A dict is split into its values, so are a list and a tuple with a tensor, a dict or a live object
    in them; others are values. Names are the keys of the path, as torch's planner has them.

    values: by name. duplicates: names of two values. slots: for each name the container and the key,
    equal for two names of one place. wholes: names of live objects, lists, tuples and empty dicts,
    which must take all that a checkpoint has for them.

    adapt: for a load; called with each live object, its state, which it may change, and its name.
    An object may then have a blank instead of its state.

    Raises CheckpointError for what has no name, or no end.
    """

    def __init__(
        self,
        state_dict: Mapping[str, object],
        adapt: Callable[[Any, Any, str], None] | None = None,
    ) -> None:
        if not isinstance(state_dict, Mapping):
            raise CheckpointError(
                f"the state dict is of type {type(state_dict).__name__}: "
                "give a dict of names and values"
            )
        self.values: dict[str, Any] = {}
        self.duplicates: list[str] = []
        self.slots: dict[str, tuple[int, Any]] = {}
        self.wholes: set[str] = set()
        self._state_dict = state_dict
        self._adapt = adapt
        # By the id of a live object: its state, and what gives it another. The object is in it too,
        # so no other gets this id.
        self._states: dict[int, tuple[Any, Callable[[Any], None], Any]] = {}
        self._restored: set[int] = set()
        try:
            self._expand_items(state_dict, ())
        except RecursionError as error:
            raise CheckpointError("the state dict holds itself, or is nested too deeply") from error

    def restore(self, loaded: Mapping[str, Any]) -> None:
        """Puts the loaded values that are no tensors in their places, and gives the states to the
        live objects.
        """
        self._restore_items(self._state_dict, (), loaded)

    def _expand_items(self, container: Any, path: tuple[Any, ...]) -> None:
        for key, value in entries(container):
            _check_key(key, path)
            self._expand(value, (*path, key), (id(container), key))

    def _expand(self, value: Any, path: tuple[Any, ...], slot: tuple[int, Any]) -> None:
        name = name_of(path)
        if is_stateful(value):
            self.wholes.add(name)
            if id(value) not in self._states:
                self._states[id(value)] = (*self._state_of(value, name), value)
            self._expand(self._states[id(value)][0], path, (id(value), None))
        elif _is_split(value):
            if not isinstance(value, MutableMapping) or not value:
                self.wholes.add(name)
            self._expand_items(value, path)
        else:
            if name in self.values:
                self.duplicates.append(name)
            self.values[name] = value
            self.slots[name] = slot

    def _state_of(self, value: Any, name: str) -> tuple[Any, Callable[[Any], None]]:
        if self._adapt is None:
            return wrappers.state_of(value)
        if _has_method(value, "blank_state"):
            return value.blank_state(), value.load_state_dict
        state, give = wrappers.state_of(value)
        self._adapt(value, state, name)
        return state, give

    def _restore(self, live: Any, path: tuple[Any, ...], loaded: Mapping[str, Any]) -> Any:
        """What belongs in the place of `live`: itself, unless it is a plain value or a tuple."""
        if is_stateful(live):
            if id(live) not in self._restored:
                self._restored.add(id(live))
                state, give, _ = self._states[id(live)]
                give(self._restore(state, path, loaded))
            return live
        if _is_split(live):
            return self._restore_items(live, path, loaded)
        return loaded.get(name_of(path), live)

    def _restore_items(self, live: Any, path: tuple[Any, ...], loaded: Mapping[str, Any]) -> Any:
        changed = {}
        for key, item in entries(live):
            restored = self._restore(item, (*path, key), loaded)
            if restored is not item:
                changed[key] = restored
        if changed and isinstance(live, tuple):
            items = [changed.get(key, item) for key, item in enumerate(live)]
            return live._make(items) if hasattr(live, "_make") else type(live)(items)
        for key, restored in changed.items():
            live[key] = restored
        return live


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


def entries(container: Any) -> Iterable[tuple[Any, Any]]:
    """Keys and values of a dict; numbers and elements of a list or tuple."""
    return container.items() if isinstance(container, Mapping) else enumerate(container)


def _is_split(value: Any) -> bool:
    import torch

    if not isinstance(value, (list, tuple)):
        return isinstance(value, MutableMapping)
    return any(
        isinstance(item, torch.Tensor) or is_stateful(item) or _is_split(item)
        for item in value
        if type(item) not in PLAIN
    )


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


def hidden_state(value: Any) -> str | None:
    """Why a load, which puts another object in the place of this one, would lose what it holds:
    tensors, or live objects that others refer to too. None if it holds neither.
    """
    kind = type(value).__name__
    try:
        _LiveObjectFinder(io.BytesIO(), protocol=5, buffer_callback=lambda _: None).dump(value)
    except CheckpointError as error:
        what = "has no load_state_dict" if kind == str(error) else f"holds a {error}"
        return (
            f"is of type {kind} and {what}, so `load` cannot fill it: give it state_dict and "
            "load_state_dict, or pass its parts in dicts, lists and tuples"
        )
    except Exception as error:  # pickle lets through whatever an object's own methods raise
        return f"cannot be pickled: {type(error).__name__}: {error}"
    return None
