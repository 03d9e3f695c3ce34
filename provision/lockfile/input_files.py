"""The inputs of a lock: environment.yml and virtual-packages.yml, as spec.yml renders them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.paths import ENVIRONMENT, VIRTUAL_PACKAGES
from provision.core.platforms import PLATFORMS, Platform
from provision.core.remembered import remembered
from provision.core.schema import schema_error
from provision.core.yaml_text import YamlError, parse_yaml

_ADVICE = "Correct it, or restore what spec.yml renders: provision render {name} --force"


# Name -> version of what the solver may assume of a machine (`__glibc`, `__cuda`), sorted.
VirtualPackages = tuple[tuple[str, str], ...]


@frozen
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
    document, machines = remembered(
        "lock-inputs",
        folder,
        f"{environment}\0{virtual_packages}".encode(errors="surrogatepass"),
        lambda: _checked_documents(environment, virtual_packages, folder),
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


def _sha256(document: Any, machines: Any, as_of: str | None, sources: Sequence[str]) -> str:
    hashed = [document, machines]
    if as_of:
        hashed.append(as_of)
    if sources:
        hashed.append({"sources": list(sources)})
    return hashlib.sha256(json.dumps(hashed, sort_keys=True, default=str).encode()).hexdigest()


def _checked_documents(environment: str, virtual_packages: str, folder: Path) -> list[Any]:
    document = _parse(environment, folder / ENVIRONMENT)
    machines = _parse(virtual_packages, folder / VIRTUAL_PACKAGES)
    problem = schema_error({ENVIRONMENT: document, VIRTUAL_PACKAGES: machines}, "lock-inputs")
    if problem:
        raise InvalidSpec(
            f"The inputs of the lock in {folder} are not valid: {problem}.",
            advice=_ADVICE.format(name=folder.name),
        )
    return [document, machines]


def _parse(text: str, path: Path) -> Any:
    try:
        return parse_yaml(text)
    except YamlError as error:
        raise InvalidSpec(
            error.in_file(path),
            advice=_ADVICE.format(name=path.parent.name),
        ) from error
