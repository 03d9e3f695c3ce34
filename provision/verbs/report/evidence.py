"""What environments, files and drift records hold for reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from provision import report
from provision.core.errors import InvalidSpec
from provision.core.paths import LOCK, Folders
from provision.core.similar_names import did_you_mean
from provision.environment import passport as passports
from provision.report.load import EvidenceFile
from provision.workflow.passport import differs_from_lock, outdated

SMOKE_REPORT = "report.json"


def load_evidence(folders: Folders, path: Path) -> EvidenceFile:
    """The evidence in a file, and whether it is of the environment as it is now: as it is here for
    a passport of this user, else as the lock next to it says, if there is one."""
    evidence = report.load(path)
    if evidence.passport is None:
        return evidence
    if path.absolute() == folders.passport(evidence.passport["name"]) / passports.FILE:
        reason = outdated(folders, evidence.passport)
    else:
        reason = differs_from_lock(evidence.passport, path.parent / LOCK)
    return replace(evidence, outdated=reason)


def evidence_file(folders: Folders, target: str) -> Path:
    """A target's file: of an environment its passport, of a folder the passport or smoke report."""
    if "/" not in target:
        passport = folders.passport(target) / passports.FILE
        if passport.is_file():
            return passport
    path = Path(target)
    if path.is_dir():
        for name in (passports.FILE, SMOKE_REPORT):
            if (path / name).is_file():
                return path / name
    elif path.exists():
        return path
    names = sorted(
        path.parent.name for path in folders.passport("*").parent.glob(f"*/{passports.FILE}")
    )
    raise InvalidSpec(
        f"`{target}` is neither an environment with a passport nor a file.",
        advice=(
            f"{did_you_mean(target, names)}Environments with a passport: {', '.join(names) or 'none'}. Or name a "
            "passport.json, or a smoke test's report.json."
        ),
    )
