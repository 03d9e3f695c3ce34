"""`checkpoint export` and `checkpoint import`: to and from the files of other programs."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path

from ...comm.ranks import single_process
from .. import catalog
from ..errors import CheckpointError
from ..export import ExportOptions, export, renamed
from ..export import Transfer as Transfer
from ..nested import Expansion
from ..storage import Step, Storage
from .root import InspectionError, opened


def export_step(root: str, step: Step, target: str, chosen: ExportOptions) -> Transfer:
    """Raises CheckpointError."""
    _require_torch("export")
    storage = opened(root)
    return export(storage, catalog.folder_of(storage, step), Path(target), chosen)


def import_step(
    source: str,
    root: str,
    step: int,
    rename: Sequence[tuple[str, str]] = (),
    allow_pickle: bool = False,
) -> Transfer:
    """Saves what others wrote as a checkpoint, which is whole or absent. Raises CheckpointError."""
    _require_torch("import")
    from .. import save
    from ..plain import read_plain

    if catalog.choose(Storage(root), step, catalog.REFUSE):
        raise CheckpointError(f"{root} has a checkpoint of step {step}: choose another --step")
    named: dict[str, object] = {}
    for old, value in Expansion(read_plain(source, allow_pickle=allow_pickle)).values.items():
        name = renamed(old, rename)
        if named.setdefault(name, value) is not value:
            raise CheckpointError(f"{source}: {old} gets the name {name!r} too")
    report = save(named, root, step=step, ranks=single_process())
    return Transfer(step, report.folder, len(named), report.bytes)


def _require_torch(verb: str) -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise InspectionError(
            f"checkpoint {verb} needs torch, which this interpreter does not have",
            "Run it in an environment, with the same options: provision run NAME -- "
            f"python -m provision_runtime checkpoint {verb} ...",
        ) from error


def parse_rename(text: str) -> tuple[str, str]:
    """PATTERN=REPLACEMENT of `re.sub`; the last sign of equality separates them."""
    pattern, sign, replacement = text.rpartition("=")
    try:
        re.sub(pattern, replacement, "")
    except re.error as error:
        raise ArgumentTypeError(f"{text!r} is no pattern of Python's re.sub: {error}.") from error
    if not sign:
        raise ArgumentTypeError(f"{text!r} is not PATTERN=REPLACEMENT.")
    return pattern, replacement
