"""`checkpoint export` and `checkpoint import`: to and from the files of other programs."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...comm.ranks import single_process
from .. import catalog, layout, manifest
from ..backends import open_root
from ..errors import CheckpointError, DamagedFile
from ..export import Exported as Exported
from ..export import ExportOptions as ExportOptions
from ..export import export
from ..nested import name_of, values
from .contents import look_up
from .root import DAMAGED, INVALID, InspectionError, opened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

UNITS = {
    "": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
}


@dataclass(frozen=True)
class Imported:
    """bytes: of the tensors. folder: the path, or the URL, of the checkpoint."""

    step: int
    folder: str
    tensors: int
    objects: int
    bytes: int


def export_step(
    root: str, options: Mapping[str, object], step: int | str, target: str, chosen: ExportOptions
) -> Exported:
    """root: of the checkpoints, or the folder of one of them. Raises InspectionError."""
    name = layout.parse(Path(root).resolve().name)
    if name is not None and (Path(root) / manifest.NAME).exists():
        root, step = str(Path(root).resolve().parent), name.step
    with opened(root, options) as backend:
        folder, damage = look_up(backend, step)
        if damage:
            raise InspectionError(DAMAGED, f"{damage}.", "Name a step with --step.")
        try:
            return export(backend, folder, Path(target), chosen)
        except DamagedFile as error:
            raise InspectionError(
                DAMAGED, f"{error}.", "`provision checkpoint verify --all` shows what is intact."
            ) from error
        except CheckpointError as error:
            raise InspectionError(INVALID, f"{error}.") from error


def import_step(
    source: str,
    root: str,
    options: Mapping[str, object],
    step: int,
    *,
    rename: Sequence[tuple[str, str]] = (),
    skip: Sequence[str] = (),
    allow_pickle: bool = False,
) -> Imported:
    """Saves what others wrote as a checkpoint, which is whole or absent. Raises InspectionError."""
    try:
        import torch
    except ImportError as error:
        raise InspectionError(
            INVALID,
            "Importing needs torch, which this interpreter does not have.",
            "Run it in an environment: provision run NAME -- python -m provision_runtime "
            f"checkpoint import {source} {root} --step {step}",
        ) from error
    from .. import save
    from ..plain import read_plain

    try:
        steps = [name.step for name in catalog.steps(open_root(root, options))]
        if step in steps:
            raise CheckpointError(f"{root} has a checkpoint of step {step}: choose another --step")
        tree = read_plain(source, allow_pickle=allow_pickle, skip=tuple(skip))
        named: dict[str, object] = {}
        for path, value in values(tree):
            name = name_of(path)
            for pattern, replacement in rename:
                name = re.sub(pattern, replacement, name)
            if name in named or not name:
                raise CheckpointError(f"{source}: {name_of(path)} gets the name {name!r} too")
            named[name] = value
        if not named:
            raise CheckpointError(f"{source} holds nothing")
        report = save(
            named, root, step=step, ranks=single_process(), storage_options=options or None
        )
    except CheckpointError as error:
        raise InspectionError(INVALID, f"{error}.") from error
    tensors = sum(isinstance(value, torch.Tensor) for value in named.values())
    return Imported(step, report.folder, tensors, len(named) - tensors, report.bytes)


def parse_rename(text: str) -> tuple[str, str]:
    """PATTERN=REPLACEMENT of `re.sub`; the last sign of equality separates them."""
    pattern, sign, replacement = text.rpartition("=")
    if not sign:
        raise ArgumentTypeError(f"{text!r} is not PATTERN=REPLACEMENT.")
    try:
        re.sub(pattern, replacement, "")
        re.compile(pattern)
    except (re.error, IndexError) as error:
        raise ArgumentTypeError(f"{text!r} is no pattern of Python's re.sub: {error}.") from error
    return pattern, replacement


def parse_size(text: str) -> int:
    """Bytes: 5GB, 500MB, 2GiB."""
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip(), re.IGNORECASE)
    unit = UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or not int(match[1]):
        raise ArgumentTypeError(f"{text!r} is not a size, such as 5GB or 500MB.")
    return int(match[1]) * unit
