"""`provision drift`: what differs between nodes, as a document that can be kept and drawn."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path, PurePosixPath

from provision.core.atomic import atomic_write
from provision.core.documents import DriftRecord
from provision.core.errors import InvalidSpec
from provision.core.paths import make_private_directory
from provision.resolver import spec as specs
from provision.verbs.drift.survey import DriftRequest, survey
from provision.workflow.context import Context, refuse_mistyped_name


def compare_nodes(context: Context, request: DriftRequest) -> DriftRecord:
    """The record of a comparison, which this machine keeps until the next of the same nodes."""
    refuse_mistyped_name(context.folders, specs.check_name(request.name))
    if request.prefix and not PurePosixPath(request.prefix).is_absolute():
        raise InvalidSpec(
            f"--prefix {request.prefix} is not an absolute path.",
            advice="Name the folder as the nodes have it, like /shared/envs/train.",
        )
    count = len(request.selection.nodes)
    with context.progress.meter(f"asking {count} nodes", count) as meter:
        record = survey(request, on_reply=lambda _: meter.advance(1))
    file = hashlib.sha256(request.selection.text.encode()).hexdigest()[:12]
    folder = context.folders.drift(request.name)
    try:
        make_private_directory(folder)
        write_record(folder / f"{file}.json", record)
    except OSError as error:
        context.progress.warn(f"the result is not kept for `report`: {error}")
    return record


def write_record(path: Path, record: DriftRecord) -> None:
    atomic_write(path, json.dumps(record, indent=1) + "\n")
