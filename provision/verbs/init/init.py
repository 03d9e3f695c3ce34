"""`provision init` and `provision import`: a spec.yml from what a repository has already."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision import render, resolver
from provision.core.atomic import atomic_write
from provision.core.errors import InUse, InvalidSpec, NoSuchBuild, ToolFailed
from provision.core.paths import SPEC
from provision.core.process import run
from provision.core.requirement_lines import read_lines
from provision.core.schema import schema_error
from provision.core.types import HostGpus, Resolution
from provision.core.yaml_text import YamlError, parse_yaml, read_source
from provision.resolver import spec as specs
from provision.resolver.foreign_specs import (
    ForeignSpec,
    from_environment,
    from_pyproject,
    from_requirements,
)
from provision.workflow.context import Context
from provision.workflow.resolution import check_requirements, resolve

# In the order in which they are preferred: the first says most.
NAMES = ("environment.yml", "environment.yaml", "requirements.txt", "pyproject.toml")
CONDA_COMMANDS = ("conda", "mamba", "micromamba")
EXPORT_TIMEOUT_S = 60.0
# The newest release that fits the machine; `latest` would be the newest, whether it fits or not.
ANY_TORCH = ">=2.0"


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A spec.yml that would be written. source: what it was read from. others: files that were
    there too and were not read. notes: decisions to check."""

    name: str
    path: Path
    text: str
    source: str
    resolution: Resolution
    notes: tuple[str, ...]
    unread_files: tuple[str, ...] = ()


def propose(
    context: Context, folder: Path, machine: HostGpus, *, name: str | None = None
) -> Proposal:
    """`provision init`: the spec of a repository, from the first of its files that says something.

    machine: this one; decides where the files say nothing about CUDA. Without files, the active
    conda environment is read, and without that the newest PyTorch is proposed.
    """
    present = [folder / file for file in NAMES if (folder / file).is_file()]
    if present:
        foreign, source = read_file(present[0]), present[0].name
    else:
        foreign, source = _from_active_conda()
    unread_files = tuple(path.name for path in present[1:])
    name = name or environment_name(foreign.name or folder.name)
    proposal = _proposal(context, foreign, source, machine, name)
    return dataclasses.replace(proposal, unread_files=unread_files)


def propose_from(
    context: Context, file: Path, machine: HostGpus, *, name: str | None = None
) -> Proposal:
    """`provision import FILE`: the same from one file."""
    foreign = read_file(file)
    stem = file.stem if file.name not in NAMES else file.absolute().parent.name
    name = name or environment_name(foreign.name or stem)
    return _proposal(context, foreign, file.name, machine, name)


def write(proposal: Proposal) -> None:
    """Write the spec.yml. Raises InUse if there is one already."""
    if proposal.path.exists():
        raise InUse(
            f"{proposal.path} exists.",
            advice="Choose another name with --name, or edit the file.",
        )
    atomic_write(proposal.path, proposal.text)


def environment_name(text: str) -> str:
    """A text as an environment's name: lower case, other characters as `-`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "lab"


def read_file(path: Path) -> ForeignSpec:
    """What a file requests. Raises InvalidSpec if it cannot be read or is of no known kind."""
    try:
        if path.suffix in (".txt", ".in"):
            return from_requirements(
                entry.value if entry.requirement else entry.text for entry in read_lines(path)
            )
        is_pyproject = path.suffix == ".toml"
        document = _read_toml(path) if is_pyproject else parse_yaml(read_source(path))
    except (OSError, YamlError, ValueError) as error:
        raise InvalidSpec(f"{path} cannot be read: {error}.", advice="Correct the file.") from error
    problem = schema_error(document, "pyproject" if is_pyproject else "environment-file")
    if problem:
        raise InvalidSpec(
            f"{path} is neither an environment.yml, a requirements.txt nor a pyproject.toml: "
            f"{problem}.",
            advice="`conda env export --from-history` writes an environment.yml.",
        )
    return from_pyproject(document) if is_pyproject else from_environment(document)


def _read_toml(path: Path) -> Any:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(read_source(path).decode())


def _from_active_conda() -> tuple[ForeignSpec, str]:
    """The active conda environment by its own history; nothing if none is active."""
    name = os.environ.get("CONDA_DEFAULT_ENV", "")
    commands = [command for command in CONDA_COMMANDS if shutil.which(command)]
    if not commands or name in ("", "base"):
        return ForeignSpec(companions=True), "nothing"
    export = [commands[0], "env", "export", "--from-history"]
    try:
        document = parse_yaml(run(export, timeout_s=EXPORT_TIMEOUT_S).stdout)
    except (ToolFailed, YamlError):
        return ForeignSpec(companions=True), "nothing"
    return from_environment(document or {}), f"the conda environment {name}"


def _proposal(
    context: Context, foreign: ForeignSpec, source: str, machine: HostGpus, name: str
) -> Proposal:
    options = foreign.options()
    notes = [*foreign.credentials, *(f"left out: {reason}" for reason in foreign.left_out)]
    for requirement in foreign.unnamed:
        command = shlex.join(["provision", "add", name, requirement])
        notes.append(f"left out: `{requirement}`: `{command}` adds it")
    if foreign.torch is None:
        options["torch"] = ANY_TORCH
        notes.append("no version of PyTorch was requested: the newest that fits was chosen")
    if foreign.cuda is None and not foreign.cpu:
        if machine.gpus:
            options["cuda"] = "auto"
            gpus = ", ".join(dict.fromkeys(machine.gpus))
            notes.append(f"CUDA for the GPUs of this machine ({gpus}, driver {machine.driver})")
        else:
            options["cpu"] = True
            notes.append(
                f"a build without CUDA: {machine.why or 'no GPU answers here'}; for GPU machines "
                'write cuda: "12.1" (or another) instead of cpu'
            )
    spec = check_requirements(specs.combine({}, options, name=specs.check_name(name)))
    resolution = resolve(spec)
    notes += _problems_here(resolution, machine)
    content = specs.content(resolution.spec)
    if foreign.torch is None:
        content["torch"] = resolution.torch
    return Proposal(
        name=name,
        path=context.folders.envs / name / SPEC,
        text=render.render_spec(name, content),
        source=source,
        resolution=resolution,
        notes=tuple(notes),
    )


def _problems_here(resolution: Resolution, machine: HostGpus) -> list[str]:
    """Why the build does not run on this machine, or perhaps does not, and which one does."""
    if resolution.cuda is None or not machine.gpus:
        return []
    spec = resolver.for_machine(resolution.spec, machine)
    verdict = "this build may not run on this machine"
    try:
        warnings = resolve(spec).warnings
        problems = [choice.reason for choice in warnings if choice.what in ("gpu", "driver")]
    except NoSuchBuild as error:
        verdict = "this build does not run on this machine"
        problems = error.advice.partition("Why")[2].splitlines()[1:]
    if not problems:
        return []
    options = resolver.build_known_to_run(spec)
    nearest = f"the nearest that is known to: `{options}`" if options else "none is known to"
    facts = "; ".join(problem.strip().rstrip(".") for problem in problems)
    return [f"{verdict}: {facts}; {nearest}"]
