"""The types of documents that provision writes and reads again, as their schemas in
provision/schemas describe them.

`core.schema` checks a document before it gets one of these types. Fields may be missing where the
schema does not require them.
"""

from __future__ import annotations

from typing import Any, TypedDict

from provision.core.spec_fields import SpecContent

# A smoke report of any schema: provision_runtime/report/model.py defines and reads the present one.
SmokeReport = dict[str, Any]


class ReasonRow(TypedDict):
    """A choice or a warning."""

    what: str
    value: object
    reason: str
    source: str


class PinRow(TypedDict, total=False):
    """A pin. locked: the version in the lock."""

    manager: str
    requirement: str
    reason: str
    source: str
    locked: str | None


class LockSummary(TypedDict, total=False):
    sha256: str
    content_hash: str
    packages: int
    python_from: str
    portable: bool
    index_settings: list[str]


class PrefixSummary(TypedDict, total=False):
    path: str
    lock_sha256: str


class RuntimeSummary(TypedDict):
    """provision_runtime in the prefix of a passport."""

    name: str
    version: str
    sha256: str


class LayerRow(TypedDict):
    """A layer of the image of a passport."""

    group: str
    digest: str
    size: int


class RecordedImage(TypedDict):
    reference: str
    manifest_digest: str
    image_id: str
    base: str
    base_digest: str
    lock_sha256: str
    layout: str
    layers: list[LayerRow]


class KernelSummary(TypedDict, total=False):
    """The Jupyter kernel of a passport."""

    name: str
    path: str


class Verdict(TypedDict, total=False):
    """The verdict of a smoke test. target: only in `smoke_elsewhere`. elsewhere: only printed."""

    target: str
    verdict: str
    measured_on: dict[str, str]
    lock_sha256: str
    image_id: str
    elsewhere: str
    report: SmokeReport


class NodeResult(TypedDict):
    """What a smoke test over nodes says of one."""

    node: str
    host: str
    state: str
    findings: list[str]
    message: str


class NodesSummary(TypedDict, total=False):
    """The latest smoke test over nodes."""

    on: str
    verdict: str
    started_at: str
    duration_s: float
    job: str | None
    nodes: list[NodeResult]


class Passport(TypedDict, total=False):
    """passport.schema.json. outdated: only printed."""

    schema: int
    name: str
    made_by: str
    written_at: str
    outdated: str
    request: SpecContent
    reasons: list[ReasonRow]
    warnings: list[ReasonRow]
    pins: list[PinRow]
    lock: LockSummary
    environment: dict[str, str | None]
    prefix: PrefixSummary
    runtime: RuntimeSummary | None
    facts: dict[str, str]
    image: RecordedImage | None
    kernel: KernelSummary | None
    smoke: dict[str, Verdict]
    smoke_elsewhere: list[Verdict]
    smoke_nodes: NodesSummary


class DriftDeviation(TypedDict):
    """A value that nodes have and should not."""

    value: str
    nodes: str
    count: int


class UnreadRow(TypedDict):
    """Nodes that do not say what they have."""

    reason: str
    nodes: str
    count: int


class DriftFact(TypedDict):
    """One fact of nodes that were compared."""

    name: str
    title: str
    group: str
    reference: str | None
    count: int
    deviations: list[DriftDeviation]
    unread: list[UnreadRow]


class DriftNode(TypedDict, total=False):
    name: str
    verdict: str
    failure: str
    differs: dict[str, str]
    without: list[str]
    unread: dict[str, str]


class DriftRecord(TypedDict, total=False):
    """drift.schema.json."""

    schema: int
    kind: str
    made_by: str
    written_at: str
    name: str
    on: str
    path: str
    deep: bool
    verdict: str
    counts: dict[str, int]
    distributions: int | None
    facts: list[DriftFact]
    failures: list[dict[str, str]]
    notes: list[str]
    nodes: list[DriftNode]
