"""`provision drift`: what differs between nodes, as a document that can be kept and drawn."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath

from provision.cluster import pack as packs
from provision.cluster.inventory import NodeSelection
from provision.cluster.pack import Pack
from provision.core.atomic import atomic_write
from provision.core.documents import DriftRecord
from provision.core.errors import InvalidSpec, StaleLock
from provision.core.paths import make_private_directory
from provision.resolver import spec as specs
from provision.verbs.drift import record as drift_record
from provision.verbs.drift import survey as drift
from provision.verbs.drift.comparison import DISTRIBUTION, FILES, INSTALLED, ExpectedNode
from provision.verbs.drift.survey import DriftRequest
from provision.workflow.context import Context, refuse_mistyped_name
from provision.workflow.evidence import evidence_file, load_evidence

# The files of a pack are called by its key.
PACK_FILE = re.compile(r".+-[0-9a-f]{12}\.(json|sqsh|tar\.gz)")


def compare_nodes(
    context: Context, selection: NodeSelection, request: DriftRequest, expect: str | None
) -> DriftRecord:
    """The record of a comparison, which this machine keeps until the next of the same nodes.

    expect: as `read_expectation` takes it.
    """
    refuse_mistyped_name(context.folders, specs.check_name(request.name))
    if request.prefix and not PurePosixPath(request.prefix).is_absolute():
        raise InvalidSpec(
            f"--prefix {request.prefix} is not an absolute path.",
            advice="Name the folder as the nodes have it, like /shared/envs/train.",
        )
    expectation = None
    if expect is not None:
        expectation = read_expectation(context, expect, deep=request.deep)
    count = len(selection.nodes)
    with context.progress.meter(f"asking {count} nodes", count) as meter:
        survey = drift.survey(selection, request, expectation, on_reply=lambda _: meter.advance(1))
    written_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    record = drift_record.compose(survey, expectation, written_at)
    file = hashlib.sha256(selection.text.encode()).hexdigest()[:12]
    folder = context.folders.drift(request.name)
    try:
        make_private_directory(folder)
        write_record(folder / f"{file}.json", record)
    except OSError as error:
        context.progress.warn(f"the result is not kept for `report --lab`: {error}")
    return record


def read_expectation(context: Context, target: str, *, deep: bool) -> ExpectedNode:
    """What nodes must have: by a pack, everything in it; by a passport, its lock, and the driver and
    glibc that it needs.

    target: an environment with a passport, a passport's file, or a pack's. Raises InvalidSpec,
    ToolMissing and IntegrityError for a file that cannot be used, StaleLock for a passport of another
    lock.
    """
    if PACK_FILE.fullmatch(Path(target).name):
        return _expected_of_pack(packs.read_pack(Path(target)), deep)
    path = evidence_file(context.folders, target)
    evidence = load_evidence(context.folders, path)
    passport = evidence.passport
    if passport is None:
        raise InvalidSpec(
            f"{path} is a smoke report, which has no lock.",
            advice="Name an environment, its passport.json or a pack with --expect.",
        )
    if evidence.outdated:
        raise StaleLock(
            f"{path} is out of date: {evidence.outdated}.",
            advice=f"`provision build {passport['name']}` writes a new one, or name a pack.",
        )
    environment = passport.get("environment", {})
    minimum = {"driver": environment.get("driver_floor"), "glibc": environment.get("glibc")}
    return ExpectedNode(
        source=str(path),
        exact={"lock": passport["lock"]["sha256"]},
        minimum={fact: version for fact, version in minimum.items() if version},
    )


def _expected_of_pack(pack: Pack, deep: bool) -> ExpectedNode:
    sidecar = pack.sidecar
    exact = {
        INSTALLED: pack.key,
        "lock": sidecar["lock_sha256"],
        FILES: sidecar["root" if deep else "shallow_root"],
    }
    for name, entry in sidecar["distributions"].items():
        digest = entry["digest" if deep else "shallow_digest"]
        exact[DISTRIBUTION + name] = drift.describe_distribution(entry["version"], digest)
    minimum = {"driver": sidecar["driver_min"], "glibc": sidecar["glibc_min"]}
    return ExpectedNode(
        source=str(pack.sidecar_path),
        exact=exact,
        minimum={fact: version for fact, version in minimum.items() if version},
    )


def check_output(path: Path) -> None:
    """Before nodes are asked: raise InvalidSpec for a path that cannot be a file."""
    if path.is_dir():
        raise InvalidSpec(f"{path} is a folder.", advice="Name a file, such as drift.json.")


def write_record(path: Path, record: DriftRecord) -> None:
    atomic_write(path, json.dumps(record, indent=1) + "\n")
