"""Checks a lock without a solver, whichever tool made it.

The locked packages meet every requirement. Every hash is well-formed. Every package comes once,
from a declared channel, through one manager. The lock was made from the inputs next to it.

Nothing here uses the network: what each wheel requires is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping

from provision.adapters.uv import WheelMetadata
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.paths import ENVIRONMENT, VIRTUAL_PACKAGES
from provision.lockfile.conda_lock_v1 import AS_OF, INPUTS, SOURCES, LockFile
from provision.lockfile.input_files import LockInputs, read_inputs
from provision.lockfile.verify.entries import (
    LockFinding,
    credential_findings,
    duplicate_findings,
    entry_findings,
    two_manager_findings,
)
from provision.lockfile.verify.requirements import conda_findings, wheel_findings


@frozen
class VerifyReport:
    """What is wrong with a lock, and notes on what could not be checked: that is not a pass."""

    lock: str
    packages: int
    findings: tuple[LockFinding, ...]
    notes: tuple[str, ...]


def verify_lock(
    lock: LockFile, metadata: Mapping[str, WheelMetadata | str] | None, name: str
) -> VerifyReport:
    """All findings, by platform and package. metadata: of wheels by URL, or why it could not be read;
    None if no server was asked. name: the lock's, for the report."""
    inputs = _inputs_beside(lock)
    findings = {*credential_findings(lock), *duplicate_findings(lock)}
    is_of_provision = INPUTS in lock.custom_metadata
    if inputs and is_of_provision and inputs.sha256 != lock.custom_metadata[INPUTS]:
        message = f"was not locked from the current {ENVIRONMENT} and {VIRTUAL_PACKAGES}"
        for platform in lock.content_hash:
            findings.add(
                LockFinding(
                    platform=platform, package=lock.path.name, kind="inputs", message=message
                )
            )
    unchecked: dict[str, list[str]] = {}  # why -> wheels
    platforms = sorted({entry.platform for entry in lock.entries})
    for platform in platforms:
        # conda-lock repeats a package for each of its categories.
        entry_by_file = {}
        for entry in lock.for_platform(platform):
            entry_by_file[entry.manager, entry.name, entry.url] = entry
        entries = tuple(entry_by_file.values())
        for entry in entries:
            findings.update(entry_findings(entry, lock))
        of_wheels, reasons = wheel_findings(entries, metadata or {}, inputs.pip if inputs else ())
        findings.update(of_wheels)
        for wheel, reason in reasons.items():
            label = wheel if len(platforms) == 1 else f"{wheel} ({platform})"
            unchecked.setdefault(reason, []).append(label)
        findings.update(conda_findings(entries, inputs, lock))
        findings.update(two_manager_findings(entries))
    ordered = sorted(
        findings,
        key=lambda finding: (
            finding.platform,
            finding.package.lower(),
            finding.kind,
            finding.message,
        ),
    )
    notes = ["whether the files are still served, which `provision env create` shows"]
    if inputs is None or not is_of_provision:
        notes.append(
            f"whether the lock was made from {ENVIRONMENT} and {VIRTUAL_PACKAGES}, because they "
            "cannot be compared with it"
        )
    if inputs is None:
        notes.append(
            "requirements on the machine (__glibc, __cuda), because these files are not next to the "
            "lock, or cannot be read"
        )
    if metadata is not None:
        for reason, wheels in unchecked.items():
            notes.append(f"which versions these wheels require: {', '.join(wheels)}: {reason}")
    elif any(entry.manager == "pip" for entry in lock.entries):
        notes.append(
            "which versions wheels require, only that the packages are in the lock (--offline)"
        )
    return VerifyReport(
        lock=name,
        packages=len(lock.entries),
        findings=tuple(ordered),
        notes=tuple(f"not checked: {note}" for note in notes),
    )


def _inputs_beside(lock: LockFile) -> LockInputs | None:
    """The inputs next to a lock; None if one of them is missing, or cannot be read."""
    folder = lock.path.parent
    try:
        return read_inputs(
            (folder / ENVIRONMENT).read_text(encoding="utf-8"),
            (folder / VIRTUAL_PACKAGES).read_text(encoding="utf-8"),
            folder,
            as_of=lock.custom_metadata.get(AS_OF),
            sources=lock.custom_metadata.get(SOURCES, "").splitlines(),
        )
    except (InvalidSpec, OSError, UnicodeDecodeError):
        return None
