"""Whether a lock is sound, without a solver and whoever made it: every requirement met by what is locked, every hash a hash, every
package from a declared channel, once, and by one manager, and made from the inputs that lie beside it.

Judging asks nobody. What must be asked of others (is each file still served? what does each wheel need?) comes in as answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provision.adapters.http import Availability
from provision.adapters.uv import WheelMetadata
from provision.lockfile.conda_lock_v1_contents import LockEntry, LockFile
from provision.lockfile.input_files import VIRTUAL_PACKAGES
from provision.lockfile.verify import dependencies, entries, inputs, wheel_requirements
from provision.lockfile.verify.model import Kind, LockFinding

__all__ = ["Kind", "LockFinding", "RemoteAnswers", "VerifyReport", "verify_lock"]


@dataclass(frozen=True, kw_only=True)
class RemoteAnswers:
    """What others answered, by address. None: they were not asked."""

    served: Mapping[str, Availability] | None = None
    constrains: Mapping[str, tuple[str, ...]] | None = (
        None  # of the packages whose channel's records were at hand
    )
    metadata: Mapping[str, WheelMetadata | str] | None = (
        None  # of wheels: what each says of itself, or why that could not be had
    )


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """A lock that was looked at: what is wrong with it, and what could not be looked at, which is not known to be right."""

    lock: str
    packages: int
    findings: tuple[LockFinding, ...]
    notes: tuple[str, ...]


def verify_lock(lock: LockFile, asked: RemoteAnswers, name: str) -> VerifyReport:
    """All that is wrong, by platform and package."""
    machine = inputs.machine(lock)
    hashes = inputs.content_hashes(lock)
    found = [*entries.twice(lock), *inputs.compared(lock, hashes)]
    wheels = {}
    for platform in sorted({entry.platform for entry in lock.entries}):
        there = _once(lock.of(platform))
        found += [finding for entry in there for finding in entries.of_entry(entry, lock)]
        wheels[platform] = (
            wheel_requirements.of_wheels(there, asked.metadata, inputs.pip(lock))
            if asked.metadata is not None
            else wheel_requirements.Needs()
        )
        found += [*dependencies.of_conda(there, machine, lock, asked.constrains or {})]
        found += [*wheels[platform].findings, *dependencies.of_pip(there, wheels[platform].absent)]
        found += [*entries.by_both(there), *entries.served(there, asked.served or {})]
    ordered = sorted(
        set(found), key=lambda one: (one.platform, one.package.lower(), one.kind, one.message)
    )
    notes = [
        *_notes(lock, asked, machine_known=machine is not None, inputs_known=hashes is not None),
        *_unchecked(wheels),
    ]
    return VerifyReport(
        lock=name, packages=len(lock.entries), findings=tuple(ordered), notes=tuple(notes)
    )


def _once(found: Sequence[LockEntry]) -> tuple[LockEntry, ...]:
    """conda-lock writes a package that belongs to several categories once for each."""
    return tuple({(entry.manager, entry.name, entry.url): entry for entry in found}.values())


def _notes(
    lock: LockFile, asked: RemoteAnswers, *, machine_known: bool, inputs_known: bool
) -> list[str]:
    said = []
    if asked.served is None:
        said.append("whether the files are still served was not asked (--offline)")
    if asked.metadata is None and any(entry.manager == "pip" for entry in lock.entries):
        said.append(
            "which versions wheels need was not looked at, only whether what they need is there (--offline)"
        )
    if not inputs_known:
        made_from = " and ".join([*(lock.sources or ["what it was made from"]), VIRTUAL_PACKAGES])
        said.append(
            f"the content hash was not compared: {made_from} cannot all be read beside the lock"
        )
    if not machine_known:
        said.append(
            f"needs of the machine (__glibc, __cuda) were not looked at: there is no {VIRTUAL_PACKAGES} beside the lock"
        )
    unknown = {entry.url for entry in lock.entries if entry.manager == "conda"} - (
        asked.constrains or {}
    ).keys()
    if unknown:
        said.append(
            f"`constrains` of {len(unknown)} conda packages is not known: a lock does not hold it, and their channels did not say"
        )
    return said


def _unchecked(found: Mapping[str, wheel_requirements.Needs]) -> list[str]:
    """The wheels whose needs are not known, by why."""
    reasons: dict[str, list[str]] = {}
    for platform, looked in found.items():
        for name, why in looked.unchecked.items():
            reasons.setdefault(why, []).append(name if len(found) == 1 else f"{name} ({platform})")
    return [
        f"not checked, which versions these wheels need: {', '.join(names)}: {why}"
        for why, names in reasons.items()
    ]
