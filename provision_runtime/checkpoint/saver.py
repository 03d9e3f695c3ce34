"""Saving a state dict, now or in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from . import layout, manifest, streams
from .async_save import BackgroundSave, HostSnapshot
from .commit import Save, SaveReport
from .plan import plan_save
from .progress import SaveCallback, line_printer
from .storage import Root, Storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..comm.ranks import Ranks


BACKGROUND = BackgroundSave()
SNAPSHOT = HostSnapshot()


def prepare(
    state_dict: Mapping[str, object],
    root: Root,
    step: int,
    ranks: Ranks,
    *,
    in_background: bool,
    metadata: Mapping[str, object] | None = None,
    incremental: bool = True,
    progress: SaveCallback | None = None,
) -> Callable[[], SaveReport]:
    """Waits for a save in the background, plans this one, and copies the state to host memory if
    `in_background`. Returns what writes it, which may run in another thread then.
    """
    BACKGROUND.finish()
    storage, problem = None, None
    try:
        step = layout.check_step(step)
        manifest.check_metadata(metadata)
        storage = Storage(root)
    except Exception as error:
        # It is raised at the first exchange of the ranks: raised here, it would leave the others
        # waiting there, and one save behind from then on.
        problem = error
    items = plan_save(state_dict, ranks, problem)
    assert storage is not None
    report_progress = progress or line_printer(f"saving step {step}", ranks)
    try:
        tensors = (item.data for item in items if not item.is_object)
        streams.wait_for(streams.devices_of(tensors))
        if in_background:
            items = SNAPSHOT.take(items)
    except (MemoryError, RuntimeError) as error:
        # Raised when the ranks next exchange values: raised earlier, it would leave them waiting.
        items, problem = [], error

    save = Save(storage, step, items, ranks, report_progress, metadata or {}, incremental, problem)
    return save.commit
