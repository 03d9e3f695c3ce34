"""Which checkpoint a step's number, or `latest`, means. Works without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import catalog, layout
from .errors import CheckpointError, NoCheckpoint, Vanished

if TYPE_CHECKING:
    from .manifest import Manifest
    from .storage import Step, Storage

LATEST = "latest"
REFUSE, PREVIOUS = "refuse", "previous"


def step_number(step: Step) -> int | None:
    """None for the latest. Raises ValueError if it is neither a number nor `latest`."""
    return None if step == LATEST else layout.check_step(step)


def choose(storage: Storage, step: Step, on_damage: str) -> list[str]:
    """The folders to try, in order.

    With on_damage="previous", the folders that were committed before follow, newest first.
    """
    number = step_number(step)
    first = catalog.named(storage) if number is None else catalog.of_step(storage, number)
    if first is None and number is None:
        first = next(iter(catalog.newest_first(storage)), None)
    if first is None:
        return []
    folders = [first]
    if on_damage == PREVIOUS:
        for folder in catalog.newest_first(storage):
            folder_step = catalog.step_of(folder)
            is_before = number is None or folder_step is None or folder_step < number
            if folder != first and is_before:
                folders.append(folder)
    return folders


def folder_of(storage: Storage, step: Step) -> str:
    """The folder of a step. Raises NoCheckpoint."""
    folders = choose(storage, step, REFUSE)
    if not folders:
        raise NoCheckpoint(describe_absence(storage, step))
    return folders[0]


def read_step(storage: Storage, step: Step) -> tuple[str, Manifest]:
    """The folder of a step and its manifest; looks again if it was replaced meanwhile.

    Raises NoCheckpoint; CheckpointError if the manifest cannot be read.
    """
    for _ in range(catalog.TRIES):
        folder = folder_of(storage, step)
        try:
            return folder, catalog.read_manifest(storage, folder)
        except CheckpointError:
            if folder in storage.folders():
                raise
    raise Vanished(f"step {step} in {storage.root} was replaced {catalog.TRIES} times meanwhile")


def describe_absence(storage: Storage, step: Step) -> str:
    which = "" if step == LATEST else f" of step {step}"
    steps = ", ".join(str(name.step) for name in catalog.steps(storage))
    present = "it has no committed step"
    if steps:
        present = f"it has step{'s' if ',' in steps else ''} {steps}"
    return f"{storage.root} has no checkpoint{which}: {present}"
