"""How rattler is called: what it does in Rust threads is awaited to its end, and its errors say their innermost cause."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from provision.conda.addresses import without_login

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    import asyncio  # 25 ms, and many a command asks rattler nothing

    return asyncio.run(work)


def last_cause(error: BaseException) -> str:
    """rattler prints a chain of causes, the innermost last: that is the one a person can act on."""
    lines = [line.strip() for line in told(error).splitlines() if line.strip()]
    return lines[-1].removeprefix("Caused by: ") if lines else type(error).__name__


def told(error: BaseException) -> str:
    """All that rattler says, without a mirror's password."""
    return without_login(str(error))
