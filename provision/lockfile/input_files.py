"""The inputs of a lock: environment.yml and virtual-packages.yml, read and checked.

Either may have been edited by hand.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.adapters import conda
from provision.core.dataclass import dataclass
from provision.core.errors import InvalidSpec
from provision.core.paths import ENVIRONMENT, VIRTUAL_PACKAGES
from provision.core.platforms import PLATFORMS, Platform
from provision.core.schema import schema_error
from provision.core.yaml_text import YamlError, parse_yaml

SELECTOR = re.compile(r"#.*\[")
_ADVICE = "Correct it, or restore what spec.yml renders: provision render {name} --force"


# Name -> version of what the solver may assume of a machine (`__glibc`, `__cuda`), sorted.
VirtualPackages = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class LockInputs:
    """The texts of the two files, and their content."""

    environment: str
    virtual_packages: str
    conda: tuple[str, ...]
    pip: tuple[str, ...]
    channels: tuple[str, ...]
    # Each platform has a solve of its own; in the order of PLATFORMS.
    machines: Mapping[Platform, VirtualPackages]
    # Hashes the content: neither comments, the environment's name nor conda's word `nodefaults` make
    # a lock stale.
    sha256: str
    folder: Path = Path()  # where they are: addresses in them may be relative to it
    as_of: str | None = None  # YYYY-MM-DD: the solvers ignore what was published later
    # How packages without a wheel are built: for each a line with its name first.
    builds: tuple[str, ...] = ()
    # Where named packages come from: `Spec.package_sources`.
    sources: tuple[str, ...] = ()


def read_inputs(
    environment: str,
    virtual_packages: str,
    folder: Path,
    *,
    as_of: str | None = None,
    sources: Sequence[str] = (),
) -> LockInputs:
    """Read the texts of the two files. folder: where they are, for messages. sources: where named
    packages come from, which spec.yml says.

    Raises InvalidSpec with the file and the mistake.
    """
    document = _parse(environment, folder / ENVIRONMENT)
    machines = _parse(virtual_packages, folder / VIRTUAL_PACKAGES)
    problem = schema_error({ENVIRONMENT: document, VIRTUAL_PACKAGES: machines}, "lock-inputs")
    if problem:
        raise InvalidSpec(
            f"The inputs of the lock in {folder} are not valid: {problem}.",
            advice=_ADVICE.format(name=folder.name),
        )
    dependencies = document["dependencies"]
    sections = [item for item in dependencies if isinstance(item, dict)]
    pip = sections[0]["pip"] if sections else []
    # A folder that was copied or renamed need not be solved again.
    nameless = {key: value for key, value in document.items() if key != "name"}
    channels = [channel for channel in document["channels"] if channel != "nodefaults"]
    content = {**nameless, "channels": channels}
    return LockInputs(
        environment=environment,
        folder=folder,
        virtual_packages=virtual_packages,
        conda=tuple(str(item) for item in dependencies if not isinstance(item, dict)),
        pip=tuple(str(item) for item in pip),
        channels=tuple(map(str, channels)),
        machines={
            platform: tuple(sorted(machines["subdirs"][platform]["packages"].items()))
            for platform in PLATFORMS
            if platform in machines["subdirs"]
        },
        sha256=_sha256(content, machines, as_of, sources),
        as_of=as_of,
        sources=tuple(sources),
    )


def check_inputs(inputs: LockInputs, folder: Path) -> None:
    """Raise InvalidSpec for requirements that a solver would refuse or read differently.

    Only hand edits bring such requirements in.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    mistakes = conda.spec_errors(inputs.conda)
    for text in inputs.pip:
        try:
            Requirement(text)
        except InvalidRequirement as error:
            mistakes.append(f"`{text}` is not a requirement: {str(error).splitlines()[0]}.")
    lines = _selector_lines(inputs.environment)
    if lines:
        mistakes.append(
            f"line {lines[0]} has a platform selector; the requirements must be the same on every "
            "platform."
        )
    advice = _ADVICE.format(name=folder.name)
    if mistakes:
        raise InvalidSpec(f"{folder / ENVIRONMENT}: {' '.join(mistakes)}", advice=advice)
    for platform, machine in inputs.machines.items():
        for name, version in machine:
            if not conda.is_version(version):
                raise InvalidSpec(
                    f"{folder / VIRTUAL_PACKAGES}: {name} of {platform} is {version!r}, which is "
                    "not a version.",
                    advice=advice,
                )


def _sha256(document: Any, machines: Any, as_of: str | None, sources: Sequence[str]) -> str:
    hashed = [document, machines]
    if as_of:
        hashed.append(as_of)
    if sources:
        hashed.append({"sources": list(sources)})
    return hashlib.sha256(json.dumps(hashed, sort_keys=True, default=str).encode()).hexdigest()


def _selector_lines(environment: str) -> list[int]:
    """The lines that conda-lock would use for one platform only; conda and we use them for all."""
    numbers = []
    for number, line in enumerate(environment.splitlines(), 1):
        if SELECTOR.search(line) and not line.lstrip().startswith("#"):
            numbers.append(number)
    return numbers


def _parse(text: str, path: Path) -> Any:
    try:
        return parse_yaml(text)
    except YamlError as error:
        raise InvalidSpec(
            error.in_file(path),
            advice=_ADVICE.format(name=path.parent.name),
        ) from error
