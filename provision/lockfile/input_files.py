"""What is locked: environment.yml and virtual-packages.yml, read and checked. Either may have been edited by hand."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from provision.adapters import conda
from provision.core.errors import NOT_YAML, InvalidSpec
from provision.core.types import PLATFORMS, Platform

ENVIRONMENT = "environment.yml"
VIRTUAL_PACKAGES = "virtual-packages.yml"
PLAIN = {"name", "channels", "dependencies"}
SELECTOR = re.compile(r"#.*\[")
T = TypeVar("T")
_BACK = "Mend it, or bring back what spec.yml says: provision render {name} --force"


Machine = tuple[tuple[str, str], ...]  # virtual packages: what the solver may assume of a machine


@dataclass(frozen=True, kw_only=True)
class LockInputs:
    """What is locked: the two files' texts as they stand, and what they say."""

    environment: str
    virtual_packages: str
    conda: tuple[str, ...]
    pip: tuple[str, ...]
    channels: tuple[str, ...]
    machines: Mapping[
        Platform, Machine
    ]  # one solve and one part of the lock for each, in the order of PLATFORMS
    sha256: str  # of what they say: neither a comment, a reason nor the environment's name makes a lock stale
    former_sha256: str  # the same with the name, as locks had it before
    as_of: str | None = None  # YYYY-MM-DD: what was published later is invisible
    plain: bool = True  # environment.yml says no more than what we render: other tools may know keys and selectors that we do not


def read_inputs(
    environment: str, virtual_packages: str, folder: Path, *, as_of: str | None = None
) -> LockInputs:
    """Read the two files' texts, edited by hand or not. Raises InvalidSpec with the file (in `folder`) and what is wrong."""
    said = _parse(environment, folder / ENVIRONMENT)
    machines = _parse(virtual_packages, folder / VIRTUAL_PACKAGES)
    dependencies = _entry(said, "dependencies", list, folder / ENVIRONMENT)
    sections = [item for item in dependencies if isinstance(item, dict)]
    pip = _entry(sections[0], "pip", list, folder / ENVIRONMENT) if sections else []
    nameless = {
        key: value for key, value in said.items() if key != "name"
    }  # of a copied or renamed folder nothing need be solved
    return LockInputs(
        environment=environment,
        virtual_packages=virtual_packages,
        conda=tuple(str(item) for item in dependencies if not isinstance(item, dict)),
        pip=tuple(str(item) for item in pip),
        channels=tuple(
            str(name)
            for name in _entry(said, "channels", list, folder / ENVIRONMENT)
            if name != "nodefaults"
        ),
        machines=_machines(machines, folder / VIRTUAL_PACKAGES),
        sha256=_sha256(nameless, machines, as_of),
        former_sha256=_sha256(said, machines, as_of),
        as_of=as_of,
        plain=_is_plain(said, sections) and not _selectors(environment),
    )


def _sha256(said: Any, machines: Any, as_of: str | None) -> str:
    hashed = [said, machines, *([as_of] if as_of else [])]
    return hashlib.sha256(json.dumps(hashed, sort_keys=True, default=str).encode()).hexdigest()


def _is_plain(said: Any, sections: Sequence[Any]) -> bool:
    return (
        set(said) <= PLAIN
        and len(sections) < 2
        and not any(set(section) - {"pip"} for section in sections)
    )


def _selectors(environment: str) -> list[int]:
    """The lines that conda-lock would read as one platform's alone, while conda and we would not."""
    lines = enumerate(environment.splitlines(), 1)
    return [
        number
        for number, line in lines
        if SELECTOR.search(line) and not line.lstrip().startswith("#")
    ]


def _machines(content: Any, path: Path) -> dict[Platform, Machine]:
    subdirs = _entry(content, "subdirs", dict, path)
    unknown = sorted(str(name) for name in subdirs if name not in PLATFORMS)
    if unknown or not subdirs:
        raise InvalidSpec(
            f"{path} names {f'the platform {unknown[0]}' if unknown else 'no platform'}; there are {', '.join(PLATFORMS)}.",
            advice=_BACK.format(name=path.parent.name),
        )
    return {
        platform: _machine(subdirs[platform], platform, path)
        for platform in PLATFORMS
        if platform in subdirs
    }


def _machine(content: Any, platform: Platform, path: Path) -> Machine:
    packages = _entry(content, "packages", dict, path)
    problem = next(
        (wrong for name, version in packages.items() if (wrong := _virtual_problem(name, version))),
        None,
    )
    if problem or "__glibc" not in packages:
        raise InvalidSpec(
            f"{path} {problem or 'names no __glibc'} for {platform}.",
            advice=_BACK.format(name=path.parent.name),
        )
    return tuple(sorted(packages.items()))


def _virtual_problem(name: object, version: object) -> str | None:
    """What conda-lock would refuse, or the solver."""
    if not isinstance(name, str) or not name.startswith("__"):
        return f"names {name}, which is no virtual package (they begin with __),"
    return (
        None
        if isinstance(version, str)
        else f'must have the version of {name} in quotes ({name}: "{version}")'
    )


def _parse(text: str, path: Path) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, *NOT_YAML) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        said = getattr(error, "problem", None) or type(error).__name__
        raise InvalidSpec(
            f"{where}: this is not YAML: {said}.", advice=_BACK.format(name=path.parent.name)
        ) from error


def _entry(content: Any, key: str, kind: type[T], path: Path) -> T:
    found = content.get(key) if isinstance(content, dict) else None
    if not isinstance(found, kind):
        word = {"list": "list", "dict": "mapping"}[kind.__name__]
        raise InvalidSpec(
            f"{path} has no {word} `{key}`.", advice=_BACK.format(name=path.parent.name)
        )
    return found


def check_inputs(wanted: LockInputs, folder: Path) -> None:
    """Raise InvalidSpec for what no solver would understand, or would not understand as we do; only hand edits can bring such in."""
    from packaging.requirements import InvalidRequirement, Requirement

    mistakes = conda.spec_errors(wanted.conda)
    for text in wanted.pip:
        try:
            Requirement(text)
        except InvalidRequirement as error:
            mistakes.append(f"`{text}` is not a requirement: {str(error).splitlines()[0]}.")
    if lines := _selectors(wanted.environment):
        mistakes.append(
            f"line {lines[0]} has a platform selector; the requirements are the same on every platform."
        )
    if mistakes:
        raise InvalidSpec(
            f"{folder / ENVIRONMENT}: {' '.join(mistakes)}", advice=_BACK.format(name=folder.name)
        )
    for platform, machine in wanted.machines.items():
        for name, version in machine:
            if not conda.is_version(version):
                raise InvalidSpec(
                    f"{folder / VIRTUAL_PACKAGES}: {name} of {platform} is {version!r}, which is no version.",
                    advice=_BACK.format(name=folder.name),
                )
