"""What is locked: environment.yml and virtual-packages.yml, read and checked. Either may have been edited by hand."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from provision import conda
from provision.errors import InvalidSpec
from provision.model import PLATFORM

ENVIRONMENT = "environment.yml"
VIRTUAL_PACKAGES = "virtual-packages.yml"
T = TypeVar("T")
_BACK = "Mend it, or bring back what spec.yml says: provision render {name} --force"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What is locked: the two files' texts as they stand, and what they say."""

    environment: str
    virtual_packages: str
    conda: tuple[str, ...]
    pip: tuple[str, ...]
    channels: tuple[str, ...]
    machine: tuple[tuple[str, str], ...]
    sha256: str  # of what they say: a comment or a reason does not make a lock stale


def inputs(environment: str, virtual_packages: str, folder: Path) -> Inputs:
    """Read the two files' texts, edited by hand or not. Raises InvalidSpec with the file (in `folder`) and what is wrong."""
    said = _parse(environment, folder / ENVIRONMENT)
    machine = _parse(virtual_packages, folder / VIRTUAL_PACKAGES)
    dependencies = _entry(said, "dependencies", list, folder / ENVIRONMENT)
    sections = [item for item in dependencies if isinstance(item, dict)]
    pip = _entry(sections[0], "pip", list, folder / ENVIRONMENT) if sections else []
    subdir = _entry(_entry(machine, "subdirs", dict, folder / VIRTUAL_PACKAGES), PLATFORM, dict, folder / VIRTUAL_PACKAGES)
    packages = _entry(subdir, "packages", dict, folder / VIRTUAL_PACKAGES)
    found = Inputs(
        environment=environment,
        virtual_packages=virtual_packages,
        conda=tuple(str(item) for item in dependencies if not isinstance(item, dict)),
        pip=tuple(str(item) for item in pip),
        channels=tuple(str(name) for name in _entry(said, "channels", list, folder / ENVIRONMENT) if name != "nodefaults"),
        machine=tuple(sorted((str(name), str(version)) for name, version in packages.items())),
        sha256=hashlib.sha256(json.dumps([said, machine], sort_keys=True, default=str).encode()).hexdigest(),
    )
    if "__glibc" not in dict(found.machine):
        raise InvalidSpec(f"{folder / VIRTUAL_PACKAGES} names no __glibc.", advice=_BACK.format(name=folder.name))
    return found


def _parse(text: str, path: Path) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        said = getattr(error, "problem", None) or type(error).__name__
        raise InvalidSpec(f"{where}: this is not YAML: {said}.", advice=_BACK.format(name=path.parent.name)) from error


def _entry(content: Any, key: str, kind: type[T], path: Path) -> T:
    found = content.get(key) if isinstance(content, dict) else None
    if not isinstance(found, kind):
        word = {"list": "list", "dict": "mapping"}[kind.__name__]
        raise InvalidSpec(f"{path} has no {word} `{key}`.", advice=_BACK.format(name=path.parent.name))
    return found


def check(wanted: Inputs, folder: Path) -> None:
    """Raise InvalidSpec for requirements that no solver would understand; only hand edits can bring such in."""
    from packaging.requirements import InvalidRequirement, Requirement

    mistakes = conda.check_specs(wanted.conda)
    for text in wanted.pip:
        try:
            Requirement(text)
        except InvalidRequirement as error:
            mistakes.append(f"`{text}` is not a requirement: {str(error).splitlines()[0]}.")
    if mistakes:
        raise InvalidSpec(f"{folder / ENVIRONMENT}: {' '.join(mistakes)}", advice=_BACK.format(name=folder.name))
