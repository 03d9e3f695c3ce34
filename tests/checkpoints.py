"""Real checkpoints without torch: objects stand for whatever ranks save."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provision_runtime.checkpoint.backends import Backend, open_root
from provision_runtime.checkpoint.commit import Committed, commit
from provision_runtime.checkpoint.items import MIN_FILE_BYTES, OBJECT, Item, SavePlan
from provision_runtime.comm.ranks import Ranks, single_process


def plan(contents: Mapping[str, object]) -> SavePlan:
    return SavePlan(
        tuple(Item(name, OBJECT, content) for name, content in contents.items()),
        {name: (name,) for name in contents},
    )


def save(
    root: Path | str | Backend,
    step: int,
    contents: Mapping[str, object],
    ranks: Ranks | None = None,
    **options: Any,
) -> Committed:
    settings = {"incremental": True, "progress": lambda _: None, **options}
    return commit(open_root(root), step, plan(contents), ranks or single_process(), **settings)


def big(letter: str) -> bytes:
    """Of a file of its own."""
    return letter.encode() * MIN_FILE_BYTES
