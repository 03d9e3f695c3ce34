"""A passport signed by an ssh key, and who signed one."""

from __future__ import annotations

from pathlib import Path

from provision.adapters import openssh
from provision.core.atomic import atomic_write
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.paths import LAB, Folders
from provision.environment import passport as passports
from provision.verbs.report.evidence import evidence_file
from provision.workflow import lab_definition
from provision.workflow.passport import read_passport

# What a signature is for (ssh-keygen -n), so that one of another file does not count.
NAMESPACE = "provision-passport"
SUFFIX = ".sig"


def sign(folders: Folders, name: str, key: Path) -> Path:
    """Sign an environment's passport as it is now; returns the signature, next to it."""
    read_passport(folders, name)
    path = folders.passport(name) / passports.FILE
    signature = path.with_name(path.name + SUFFIX)
    atomic_write(signature, openssh.sign(path.read_text(encoding="utf-8"), key, NAMESPACE))
    return signature


def verify(folders: Folders, target: str, signers: Path | None) -> tuple[Path, str]:
    """The path of a passport, and who signed it. target: an environment, or a file. signers: those who
    may; None for those of the lab.yml next to the envs folder.

    Raises IntegrityError if none of them did, InvalidSpec if nobody says who may.
    """
    path = evidence_file(folders, target)
    lab = folders.envs.parent
    if signers is None and (lab / LAB).is_file():
        signers = lab_definition.read_lab(lab).allowed_signers
    if signers is None:
        raise InvalidSpec(
            "No allowed signers of passports are configured.",
            advice="Name a file with --signers, or with `allowed_signers:` in lab.yml.",
        )
    signature = path.with_name(path.name + SUFFIX)
    if not signature.is_file():
        raise IntegrityError(
            f"{path} has no signature ({signature.name} next to it).",
            advice="`provision passport sign NAME KEY` makes one.",
        )
    signer = openssh.verify_signature(path.read_bytes(), signature.read_bytes(), signers, NAMESPACE)
    return path, signer
