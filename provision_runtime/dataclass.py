"""`@frozen`: `@dataclass(frozen=True)`, as nearly all our classes are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Type, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    @dataclass_transform(frozen_default=True, field_specifiers=(field,))
    def frozen(cls: Type[T]) -> Type[T]: ...

else:
    frozen = dataclass(frozen=True)
