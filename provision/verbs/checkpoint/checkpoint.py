"""What `provision checkpoint` adds to the runtime's own inspection of checkpoints: provision's errors
and its progress display.

The same verbs work without provision, e.g. on a node: `python -m provision_runtime checkpoint list
ROOT`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from provision.core.errors import IntegrityError, InvalidSpec, ProvisionError, Unreachable
from provision.core.types import Progress
from provision_runtime.checkpoint.inspection import root as inspection_root

ERRORS: dict[str, type[ProvisionError]] = {
    inspection_root.INVALID: InvalidSpec,
    inspection_root.DAMAGED: IntegrityError,
    inspection_root.UNREACHABLE: Unreachable,
}


@contextmanager
def provision_errors() -> Iterator[None]:
    """Raises InspectionError as InvalidSpec if the root or step does not exist, IntegrityError for a
    manifest that cannot be read, and Unreachable for a store that does not respond.
    """
    try:
        yield
    except inspection_root.InspectionError as error:
        raise ERRORS[error.kind](error.message, advice=error.advice) from error


@contextmanager
def verifying(progress: Progress, total: int) -> Iterator[Callable[[int], None]]:
    """Shows a meter for this many bytes, and yields what moves it."""
    with progress.meter("verifying", total) as meter:
        yield meter.advance
