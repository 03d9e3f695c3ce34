"""`checkpoint export` and `checkpoint import`: to and from the files of other programs."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING

from ...comm.ranks import single_process
from .. import catalog
from ..backends import open_root
from ..errors import CheckpointError, DamagedFile
from ..export import ExportOptions, export, renamed
from ..export import Transfer as Transfer
from ..nested import Expansion
from .contents import look_up
from .root import DAMAGED, INVALID, InspectionError, opened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..backends import Step


def export_step(
    root: str, options: Mapping[str, object], step: Step, target: str, chosen: ExportOptions
) -> Transfer:
    """Raises InspectionError."""
    _require_torch("export")
    with opened(root, options) as backend:
        folder, damage = look_up(backend, step)
        try:
            if damage:
                raise damage
            return export(backend, folder, Path(target), chosen)
        except CheckpointError as error:
            kind = DAMAGED if isinstance(error, DamagedFile) else INVALID
            raise InspectionError(kind, f"{error}.") from error


def import_step(
    source: str,
    root: str,
    options: Mapping[str, object],
    step: int,
    rename: Sequence[tuple[str, str]] = (),
    allow_pickle: bool = False,
) -> Transfer:
    """Saves what others wrote as a checkpoint, which is whole or absent. Raises InspectionError."""
    _require_torch("import")
    from .. import save
    from ..plain import read_plain

    try:
        if step in {name.step for name in catalog.steps(open_root(root, options))}:
            raise CheckpointError(f"{root} has a checkpoint of step {step}: choose another --step")
        named: dict[str, object] = {}
        for old, value in Expansion(read_plain(source, allow_pickle=allow_pickle)).values.items():
            name = renamed(old, rename)
            if named.setdefault(name, value) is not value:
                raise CheckpointError(f"{source}: {old} gets the name {name!r} too")
        report = save(
            named, root, step=step, ranks=single_process(), storage_options=options or None
        )
    except CheckpointError as error:
        text = str(error).replace("allow_pickle=True", "--allow-pickle")
        raise InspectionError(INVALID, f"{text}.") from error
    return Transfer(step, report.folder, len(named), report.bytes)


def _require_torch(verb: str) -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise InspectionError(
            INVALID,
            f"checkpoint {verb} needs torch, which this interpreter does not have.",
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
