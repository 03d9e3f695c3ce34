"""Checks a lock without a solver, whichever tool made it.

The locked packages meet every requirement. Every hash is well-formed. Every package comes once,
from a declared channel, through one manager. The lock was made from the inputs next to it.

Nothing here uses the network: what only servers know (is each file still served?
what does each wheel require?) comes in as RemoteFacts.
"""

from __future__ import annotations

from collections.abc import Mapping

from provision.adapters.http import Availability
from provision.adapters.uv import WheelMetadata
from provision.core.dataclass import dataclass
from provision.core.paths import ENVIRONMENT, VIRTUAL_PACKAGES
from provision.lockfile.conda_lock_v1 import LockFile
from provision.lockfile.verify.entries import (
    FindingKind,
    LockFinding,
    credential_findings,
    duplicate_findings,
    entry_findings,
    server_findings,
    two_manager_findings,
)
from provision.lockfile.verify.inputs import (
    assumed_machines,
    input_findings,
    is_of_inputs,
    pip_requirements,
)
from provision.lockfile.verify.requirements import (
    WheelCheck,
    check_wheels,
    conda_findings,
    wheel_findings,
)


@dataclass(frozen=True, kw_only=True)
class RemoteFacts:
    """What servers say, by URL; None if they were not asked."""

    served: Mapping[str, Availability] | None = None
    # Each wheel's own metadata, or why it is not available.
    metadata: Mapping[str, WheelMetadata | str] | None = None


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What is wrong with a lock, and notes on what could not be checked: that is not a pass."""

    lock: str
    packages: int
    findings: tuple[LockFinding, ...]
    notes: tuple[str, ...]


def verify_lock(lock: LockFile, remote: RemoteFacts, name: str) -> VerifyReport:
    """All findings, by platform and package. name: the lock's, for the report."""
    machines = assumed_machines(lock)
    is_current = is_of_inputs(lock)
    findings = {
        *credential_findings(lock),
        *duplicate_findings(lock),
        *input_findings(lock, is_current=is_current),
    }
    wheel_checks: dict[str, WheelCheck] = {}
    for platform in sorted({entry.platform for entry in lock.entries}):
        # conda-lock repeats a package for each of its categories.
        entry_by_file = {}
        for entry in lock.for_platform(platform):
            entry_by_file[entry.manager, entry.name, entry.url] = entry
        entries = tuple(entry_by_file.values())
        for entry in entries:
            findings.update(entry_findings(entry, lock))
        check = WheelCheck()
        if remote.metadata is not None:
            check = check_wheels(entries, remote.metadata, pip_requirements(lock))
        wheel_checks[platform] = check
        findings.update(check.findings)
        findings.update(wheel_findings(entries, check.checked))
        findings.update(conda_findings(entries, machines, lock))
        findings.update(two_manager_findings(entries))
        findings.update(server_findings(entries, remote.served or {}))
    ordered = sorted(
        findings,
        key=lambda finding: (
            finding.platform,
            finding.package.lower(),
            finding.kind,
            finding.message,
        ),
    )
    notes = [
        *_notes(lock, remote, has_machines=machines is not None, has_inputs=is_current is not None),
        *_unchecked_wheels(wheel_checks),
    ]
    return VerifyReport(
        lock=name, packages=len(lock.entries), findings=tuple(ordered), notes=tuple(notes)
    )


def _notes(
    lock: LockFile, remote: RemoteFacts, *, has_machines: bool, has_inputs: bool
) -> list[str]:
    notes = []
    if remote.served is None:
        notes.append("not checked: whether the files are still served (--offline)")
    has_wheels = any(entry.manager == "pip" for entry in lock.entries)
    if remote.metadata is None and has_wheels:
        notes.append(
            "not checked: which versions wheels require, only that the packages are in the lock "
            "(--offline)"
        )
    if not has_inputs:
        notes.append(
            f"not checked: whether the lock was made from {ENVIRONMENT} and {VIRTUAL_PACKAGES}, "
            "because they cannot be compared with it"
        )
    if not has_machines:
        notes.append(
            "not checked: requirements on the machine (__glibc, __cuda), because there is no "
            f"{VIRTUAL_PACKAGES} next to the lock"
        )
    return notes


def _unchecked_wheels(checks: Mapping[str, WheelCheck]) -> list[str]:
    """A note for each reason why requirements of wheels are unknown, with the wheels."""
    names_by_reason: dict[str, list[str]] = {}
    for platform, check in checks.items():
        for name, reason in check.unchecked.items():
            label = name if len(checks) == 1 else f"{name} ({platform})"
            names_by_reason.setdefault(reason, []).append(label)
    return [
        f"not checked: which versions these wheels require: {', '.join(names)}: {reason}"
        for reason, names in names_by_reason.items()
    ]
