"""`provision passport show`, and writing the record of what a build made and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.commands.context import Context, existing_environments, missing_file
from provision.core.atomic import atomic_write
from provision.core.errors import IntegrityError, InvalidSpec, ToolMissing
from provision.core.types import BuildResult, Prefix, SmokeResult
from provision.environment import passport as passports
from provision.environment import runtime_package
from provision.resolver import spec as specs


def read_passport(context: Context, name: str) -> dict[str, Any]:
    """The passport of an environment. Raises InvalidSpec if it has none."""
    folder = context.folders.envs / specs.check_name(name)
    passport = passports.read(folder)
    if passport is not None:
        return passport
    path = folder / passports.FILE
    advice = f"`provision build {name}` writes it."
    if path.exists():  # in a folder that was copied
        raise InvalidSpec(f"{path} belongs to another environment.", advice=advice)
    raise missing_file(path, advice=advice)


def passport_with_image(context: Context, name: str) -> dict[str, Any]:
    """The passport of an environment that has an image. Raises ToolMissing if it has none."""
    folder = context.folders.envs / specs.check_name(name)
    passport = passports.read(folder)
    if not passport or not passport.get("image"):
        advice = f"`provision image build {name}` makes it."
        if not folder.is_dir():
            advice = existing_environments(context.folders.envs, name)
        raise ToolMissing(f"Environment `{name}` has no image.", advice=advice)
    return passport


def write_passport(context: Context, result: BuildResult, spec_content: Mapping[str, Any]) -> None:
    """Write the passport, unless the present one says the same.

    A damaged one proves nothing and is replaced.
    """
    try:
        previous = passports.read(result.folder)
    except IntegrityError as error:
        context.progress.warn(f"{error.message} It will be replaced.")
        previous = None
    passport = passports.stamp(passports.compose(result, spec_content, previous), previous)
    if passport is not None:
        atomic_write(result.folder / passports.FILE, passports.to_text(passport))


def record_smoke(
    folder: Path, passport: Mapping[str, Any], prefix: Prefix, results: Sequence[SmokeResult]
) -> None:
    """Add verdicts to a passport, if it is of this prefix's lock."""
    if passport["lock"]["sha256"] == prefix.lock_sha256:
        updated = passports.with_smoke(passport, results, runtime_package.installed(prefix.path))
        atomic_write(folder / passports.FILE, passports.to_text(updated))


def record_smoke_over_nodes(
    folder: Path, document: Mapping[str, Any], tested_lock: str | None
) -> None:
    """Add a test over nodes to the passport, if there is one of the lock that was tested.

    tested_lock: the hash that the nodes reported; None if they reported none.
    """
    passport = passports.read(folder)
    if passport is None or tested_lock not in (None, passport["lock"]["sha256"]):
        return
    updated = passports.with_smoke_over_nodes(passport, document)
    atomic_write(folder / passports.FILE, passports.to_text(updated))
