"""The passport: request, reasons, lock, prefix, runtime, image, kernel and measured verdicts of
an environment in one file.

It is evidence: unlike rendered files it says when, where and on which machine, and so it lies in the
user's data folder, not with the files that a lab shares.
provision/schemas/passport.schema.json defines its content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from provision import __version__
from provision.core import host
from provision.core.credentials import public_document
from provision.core.errors import IntegrityError
from provision.core.package_names import package_name
from provision.core.paths import Folders
from provision.core.remembered import remembered
from provision.core.schema import InvalidDocument, parse_document
from provision.core.types import BuildResult, Image, Lock, Pin, SmokeResult

# What only writing a passport needs is imported there: `env list` reads many.
if TYPE_CHECKING:
    from provision.catalog import Edition
    from provision.core.documents import Passport, RecordedImage, RuntimeSummary, Verdict
    from provision.core.spec_fields import SpecContent
    from provision.environment.runtime_package import InstalledRuntime

FILE = "passport.json"
SCHEMA = 1
MACHINES = 64  # of the verdicts that are kept, besides the newest
# What a resolution says of the build.
BUILD = [
    "torch",
    "local_version",
    "source",
    "cuda",
    "nccl",
    "cudnn",
    "python",
    "glibc",
    "driver_floor",
]
STARTED_AT = "%Y-%m-%dT%H:%M:%SZ%z"  # as the smoke report has it, and the offset


def compose(result: BuildResult, request: SpecContent, previous: Passport | None) -> Passport:
    """The passport of a build.

    Includes the products and verdicts of an earlier build of the same lock that this one skipped,
    except a verdict on another image.
    """
    from provision.catalog import edition
    from provision.core import documents
    from provision.environment import runtime_package

    resolution, lock = result.resolution, result.lock
    earlier: Passport = {}
    if previous is not None and previous["lock"]["sha256"] == lock.sha256:
        earlier = previous
    image = earlier.get("image")
    if result.image is not None:
        layers = [_row(documents.LayerRow, layer) for layer in result.image.layers]
        layout = str(result.image.layout)
        image = _row(documents.RecordedImage, result.image, layout=layout, layers=layers)
    kernel = earlier.get("kernel")
    if result.kernel is not None:
        kernel = {"name": result.kernel.name, "path": str(result.kernel.path)}
    valid = []
    for target, verdict in verdicts(earlier):
        if target != "image" or (image and verdict.get("image_id") == image["image_id"]):
            valid.append((target, verdict))
    for smoke_result in result.smoke:
        verdict = _verdict(smoke_result, image, lock.sha256)
        valid = _with_verdict(valid, smoke_result.where, verdict)
    index_settings: Sequence[str] | None = result.index_settings
    if index_settings is None:
        index_settings = earlier.get("lock", {}).get("index_settings", [])
    passport: Passport = {
        "schema": SCHEMA,
        "name": result.name,
        "made_by": f"provision {__version__}",
        "request": dict(request),
        "reasons": [_row(documents.ReasonRow, choice) for choice in resolution.choices],
        "warnings": [_row(documents.ReasonRow, choice) for choice in resolution.warnings],
        "pins": [
            _row(documents.PinRow, pin, locked=locked_version(pin, lock)) for pin in result.pins
        ],
        "lock": _row(
            documents.LockSummary,
            lock,
            packages=len(lock.packages),
            index_settings=list(index_settings),
        ),
        "environment": {name: getattr(resolution, name) for name in BUILD},
        "prefix": {"path": str(result.prefix.path), "lock_sha256": result.prefix.lock_sha256},
        "runtime": _describe_runtime(runtime_package.installed(result.prefix.path)),
        "facts": _describe_facts(edition()),
        "image": image,
        "kernel": kernel,
        **_smoke(valid),
    }
    if "smoke_nodes" in earlier:
        passport["smoke_nodes"] = earlier["smoke_nodes"]
    return passport


def locked_version(pin: Pin, lock: Lock) -> str | None:
    """The version of a pin's package in the lock. A pin like `numpy` does not say it."""
    name = package_name(pin.requirement)
    for package in lock.packages:
        if package_name(package.name) == name:
            return package.version
    return None


def _row(kind: type, value: object, **given: object) -> Any:
    """A document of a kind: what is given, else the attributes of the value by the same names."""
    return {
        name: given[name] if name in given else getattr(value, name)
        for name in kind.__annotations__
    }


def _describe_facts(facts: Edition) -> dict[str, str]:
    described = {"date": facts.date, "sha256": facts.sha256, "origin": facts.origin}
    if facts.lab_file:
        described["lab"] = hashlib.sha256(facts.lab_file.read_bytes()).hexdigest()
    return described


def _describe_runtime(runtime: InstalledRuntime | None) -> RuntimeSummary | None:
    if runtime is None:
        return None
    return {"name": "provision_runtime", "version": runtime.version, "sha256": runtime.sha256}


def _verdict(result: SmokeResult, image: RecordedImage | None, lock_sha256: str) -> Verdict:
    verdict: Verdict = {
        "verdict": result.verdict,
        "measured_on": host.identity(),
        "lock_sha256": lock_sha256,
    }
    if image is not None and result.where == "image":
        verdict["image_id"] = image["image_id"]
    verdict["report"] = result.report
    return verdict


def verdicts(passport: Passport) -> list[tuple[str, Verdict]]:
    """Every verdict with its target: for each target the newest first, then those of other machines
    that share this user's home."""
    rows = list(passport.get("smoke", {}).items())
    rows += [(row["target"], row) for row in passport.get("smoke_elsewhere", ())]
    return rows


def _with_verdict(
    rows: Sequence[tuple[str, Verdict]], target: str, verdict: Verdict
) -> list[tuple[str, Verdict]]:
    """The verdicts with a new one in front, which replaces that of the same machine alone."""
    machine = verdict["measured_on"]
    previous = []
    for other, row in rows:
        tested = row["measured_on"]
        # An earlier provision recorded the host alone.
        is_same_id = tested.get("machine_id", machine["machine_id"]) == machine["machine_id"]
        if other != target or tested["host"] != machine["host"] or not is_same_id:
            previous.append((other, row))
    return [(target, verdict), *previous]


def _smoke(rows: Sequence[tuple[str, Verdict]]) -> Passport:
    """The entries of a passport with these verdicts. Containers are a new machine each time, so
    those of the oldest machines go."""
    newest: dict[str, Verdict] = {}
    elsewhere: list[Verdict] = []
    for target, verdict in rows:
        if target in newest:
            elsewhere.append({**verdict, "target": target})
        else:
            newest[target] = verdict
    if not elsewhere:
        return {"smoke": newest}
    return {"smoke": newest, "smoke_elsewhere": elsewhere[:MACHINES]}


def elsewhere(verdict: Verdict) -> str:
    """Where a verdict was measured, in words; empty if on this machine, as it is now."""
    machine, tested = host.identity(), verdict["measured_on"]

    def differs(key: str) -> bool:
        return tested.get(key) != machine[key] or machine[key] == host.UNKNOWN

    if differs("host"):
        without_gpu = ", without a GPU" if tested.get("gpus") == "" != machine["gpus"] else ""
        return f"on {tested['host']}{without_gpu}"
    if differs("machine_id"):
        return f"on a machine called {tested['host']}"
    if differs("driver"):
        return f"with driver {tested.get('driver') or 'none'}"
    return "with other GPUs" if differs("gpus") else ""


def measured_at(verdict: Verdict) -> float | None:
    """When a test began, in seconds since 1970; None if its report does not say."""
    try:
        started_at = datetime.strptime(f"{verdict['report']['started_at']}+0000", STARTED_AT)
    except (KeyError, TypeError, ValueError):
        return None
    return started_at.timestamp()


def with_smoke(
    passport: Passport,
    results: Sequence[SmokeResult],
    runtime: InstalledRuntime | None,
) -> Passport:
    """The passport with new verdicts; a target that was not tested this time keeps its verdict, and
    every other machine keeps its own.

    runtime: the package in the prefix.
    """
    rows = verdicts(passport)
    for result in results:
        verdict = _verdict(result, passport["image"], passport["lock"]["sha256"])
        rows = _with_verdict(rows, result.where, verdict)
    return {
        **passport,
        "runtime": _describe_runtime(runtime),
        **_smoke(rows),
        "written_at": _now(),
    }


def with_smoke_over_nodes(passport: Passport, document: Mapping[str, Any]) -> Passport:
    """The passport with the latest test over nodes. document: the report of that test."""
    from provision.core.documents import NodeResult, NodesSummary

    summary: Any = {name: document[name] for name in NodesSummary.__annotations__}
    summary["nodes"] = [
        {name: row[name] for name in NodeResult.__annotations__} for row in document["nodes"]
    ]
    return {**passport, "smoke_nodes": summary, "written_at": _now()}


def smoke_verdicts(passport: Passport, image: Image) -> list[Verdict]:
    """The verdicts on an image: of the test in it, and of the test in the prefix of the same lock.

    Leaves out a verdict that was measured in another image.
    """
    if passport["lock"]["sha256"] != image.lock_sha256:
        return []
    return [
        {**verdict, "target": target}
        for target, verdict in passport["smoke"].items()
        if target != "image" or verdict.get("image_id") == image.image_id
    ]


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def stamp(passport: Passport, previous: Passport | None) -> Passport | None:
    """The passport with the time of writing, or None if the previous one says the same."""
    if previous is not None and {**previous, "written_at": ""} == {**passport, "written_at": ""}:
        return None
    return {**passport, "written_at": _now()}


def find(folders: Folders, name: str) -> Passport | None:
    """The passport of an environment, or None if it has none.

    Ignores one of another name, which came with a copied folder. Raises IntegrityError for a
    damaged one.
    """
    path = folders.passport(name) / FILE
    try:
        content = path.read_bytes()
        passport = remembered(
            "passport", path, content, lambda: parse_document(content, "passport"), folders
        )
    except FileNotFoundError:
        return None
    except InvalidDocument as error:
        raise IntegrityError(
            f"{path} is not a passport of schema {SCHEMA}: {error}.",
            advice="Build again: that writes a new passport.",
        ) from error
    if passport["name"] != name:
        return None
    image = passport["image"]
    if image is not None and not Path(image["layout"]).exists():  # it goes with its project
        image["layout"] = str(folders.images / name)
    return cast("Passport", passport)


def to_text(passport: Passport) -> str:
    """The content of the file."""
    return json.dumps(public_document(passport), indent=1, sort_keys=False) + "\n"
