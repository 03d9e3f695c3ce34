"""`provision drift`: what differs between nodes, as a document that can be kept and drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from provision import report
from provision.cluster import drift, drift_record
from provision.cluster.comparison import Expectation
from provision.cluster.drift import DriftRequest
from provision.cluster.inventory import NodeSelection
from provision.commands.context import Context
from provision.commands.report import evidence_file
from provision.core.atomic import atomic_write
from provision.core.errors import InvalidSpec
from provision.resolver import spec as specs


def compare_nodes(
    context: Context, selection: NodeSelection, request: DriftRequest, expect: str | None
) -> dict[str, Any]:
    """The record of a comparison. expect: an environment with a passport, or a passport's file.

    Raises InvalidSpec and IntegrityError for a passport that cannot be used.
    """
    specs.check_name(request.name)
    expectation = None
    if expect is not None:
        expectation = read_expectation(context, expect)
    count = len(selection.nodes)
    with context.progress.meter(f"asking {count} nodes", count) as meter:
        survey = drift.survey(
            selection, request, expectation, on_answer=lambda answer: meter.advance(1)
        )
    written_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return drift_record.compose(survey, expectation, written_at)


def read_expectation(context: Context, target: str) -> Expectation:
    """What a passport says that nodes must have: its lock, and the driver and glibc it needs."""
    path = evidence_file(context.folders.envs, target)
    passport = report.load(path).passport
    if passport is None:
        raise InvalidSpec(
            f"{path} is a smoke report, and says nothing of a lock.",
            advice="Name an environment or its passport.json with --expect.",
        )
    minimum = {}
    environment = passport.get("environment", {})
    for fact, field in (("driver", "driver_floor"), ("glibc", "glibc")):
        if environment.get(field):
            minimum[fact] = str(environment[field])
    return Expectation(
        source=str(path), exact={"lock": passport["lock"]["sha256"]}, minimum=minimum
    )


def check_output(path: Path) -> None:
    """Before nodes are asked: raise InvalidSpec for a path that cannot be a file."""
    if path.is_dir():
        raise InvalidSpec(f"{path} is a folder.", advice="Name a file, such as drift.json.")


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    atomic_write(path, json.dumps(record, indent=1) + "\n")
