"""`@frozen`: `@dataclass(frozen=True, kw_only=True)` that writes no code for each class.

`dataclasses` compiles six methods for every class, 1 ms each time Python starts: 130 classes were two
fifths of what `provision build` with nothing to do cost. Here all classes share their methods; fields,
`replace`, `asdict` and all else are those of `dataclasses`.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda decorator: decorator


T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen(cls: type[T]) -> type[T]:
    """A class whose objects do not change, made of fields that are given by name."""
    dataclass(init=False, repr=False, eq=False, kw_only=True)(cls)
    declared = fields(cls)  # type: ignore[arg-type]
    names = {field.name for field in declared}
    defaults = {f.name: f.default for f in declared if f.default is not MISSING}
    factories = {f.name: f.default_factory for f in declared if f.default_factory is not MISSING}
    compared = [field.name for field in declared if field.compare]

    def __init__(self: Any, **values: Any) -> None:
        state = self.__dict__
        state.update(defaults)
        for name, factory in factories.items():
            if name not in values:
                state[name] = factory()
        state.update(values)
        if state.keys() != names:
            problems = ", ".join(sorted(state.keys() ^ names))
            raise TypeError(f"{cls.__name__}: missing or unexpected: {problems}")
        if hasattr(cls, "__post_init__"):
            self.__post_init__()

    def __eq__(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in compared)

    def __hash__(self: Any) -> int:
        return hash(tuple(getattr(self, name) for name in compared))

    for method in (__init__, __eq__, __hash__, __repr__, __setattr__, __delattr__):
        name = method.__name__
        if name not in cls.__dict__:
            setattr(cls, name, method)
    return cls


def __repr__(self: Any) -> str:
    values = [f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr]
    return f"{type(self).__qualname__}({', '.join(values)})"


def __setattr__(self: Any, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def __delattr__(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
