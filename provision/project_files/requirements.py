"""Requirements of pip as words of a command line."""

from __future__ import annotations

import shlex
from dataclasses import replace

from provision.core.statements import PipRequirement


def shell_words(requirement: PipRequirement) -> str:
    """A requirement without its marker, as words of a command line."""
    requirement = replace(requirement, marker="")
    if requirement.editable:
        return f"-e {shlex.quote(str(requirement)[3:])}"
    return shlex.quote(str(requirement))
