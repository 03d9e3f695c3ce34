"""Which checkpoint a step's number, or `latest`, means. Works without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import catalog, layout
from .errors import DamagedFile, NoCheckpoint

if TYPE_CHECKING:
    from .backends import Backend, Step

LATEST = "latest"
REFUSE, PREVIOUS = "refuse", "previous"


def step_number(step: Step) -> int | None:
    """None for the latest. Raises ValueError if it is neither a number nor `latest`."""
    return None if step == LATEST else layout.check_step(step)


def choose(backend: Backend, step: Step, on_damage: str) -> tuple[list[str], DamagedFile | None]:
    """The folders to try, in order; and the damage of `latest`, if it was needed to choose.

    With on_damage="previous", the folders that were committed before follow, newest first.
    """
    number = step_number(step)
    first, damage = None, None
    if number is not None:
        first = catalog.of_step(backend, number)
    else:
        try:
            first = catalog.named(backend)
        except DamagedFile as error:
            damage = error
        if first is None:
            first = next(iter(catalog.newest_first(backend)), None)
    if first is None:
        return [], damage
    folders = [first]
    if on_damage == PREVIOUS:
        for folder in catalog.newest_first(backend):
            folder_step = catalog.step_of(folder)
            is_before = number is None or folder_step is None or folder_step < number
            if folder != first and is_before:
                folders.append(folder)
    return folders, damage


def folder_of(backend: Backend, step: Step) -> str:
    """The folder of a step.

    Raises NoCheckpoint; DamagedFile if the step is the latest and `latest` is damaged.
    """
    folder, damage = look_up(backend, step)
    if damage:
        raise damage
    return folder


def look_up(backend: Backend, step: Step) -> tuple[str, DamagedFile | None]:
    """The folder of a step; and the damage of `latest`, if it was needed to choose.

    The folder is then the most likely latest one. Raises NoCheckpoint.
    """
    folders, damage = choose(backend, step, REFUSE)
    if not folders:
        raise NoCheckpoint(describe_absence(backend, step))
    return folders[0], damage


def describe_absence(backend: Backend, step: Step) -> str:
    which = "" if step == LATEST else f" of step {step}"
    steps = ", ".join(str(name.step) for name in catalog.steps(backend))
    present = "it has no committed step"
    if steps:
        present = f"it has step{'s' if ',' in steps else ''} {steps}"
    return f"{backend.root} has no checkpoint{which}: {present}"
