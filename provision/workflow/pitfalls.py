"""Warnings about a build: each once per environment, with its id."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from provision import resolver
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.types import Resolution
from provision.environment import marker
from provision.environment import passport as passports
from provision.workflow.context import Context, warn_once
from provision.workflow.named_wheels import OLD_RELEASE


def warn_of(context: Context, resolution: Resolution, folder: Path, prefix: Path) -> None:
    """Print the warnings of a resolution that are new to this environment.

    Not those that the request accepts, nor those in the passport or in the prefix: what made these
    has printed them. Raises InvalidSpec if the request accepts a warning that does not exist.

    folder: of the environment, in the envs folder. prefix: where it is installed, or will be.
    """
    accepted = set(resolution.spec.accept)
    ids = (*resolver.warning_ids(), OLD_RELEASE)
    unknown = sorted(accepted.difference(ids))
    if unknown:
        raise InvalidSpec(
            f"accept: there is no warning {', '.join(unknown)}.",
            advice=f"Warnings: {', '.join(ids)}.",
        )
    if not resolution.warnings:
        return
    printed = accepted
    with suppress(IntegrityError):
        passport = passports.find(context.folders, folder.name)
        printed |= {warning["what"] for warning in passport["warnings"]} if passport else set()
    installed = marker.read(prefix)
    if installed is not None:
        printed |= set(installed.warnings)
    for warning in resolution.warnings:
        if warning.what in printed:
            continue
        text = f"{warning.reason} ({warning.source}). {warning.value}".strip()
        if warning.what in resolver.warning_ids():
            text += f" `accept: [{warning.what}]` in spec.yml silences this warning."
        warn_once(context, text)
