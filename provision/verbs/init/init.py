"""`provision init` and `provision import`: a spec.yml from what a repository has already."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from provision import catalog, render, resolver, sources
from provision.adapters import conda
from provision.core.atomic import atomic_write
from provision.core.dataclass import frozen
from provision.core.errors import InUse, InvalidSpec, NoSuchBuild
from provision.core.paths import LAB, SPEC
from provision.core.settings import folder_settings
from provision.core.spec_fields import Spec
from provision.core.statements import Statement
from provision.core.types import HostGpus, Resolution
from provision.project_files import repository
from provision.project_files.account import Entry
from provision.project_files.decision import CPU, Choices
from provision.project_files.named_releases import named_releases
from provision.project_files.request import Request, decide
from provision.project_files.toml_file import Selection
from provision.resolver import spec as specs
from provision.workflow import lab_definition
from provision.workflow.context import Context
from provision.workflow.project_files import (
    editable_requirement,
    printed_step,
    read_file,
)
from provision.workflow.resolution import check_requirements, resolve

# Files of projects, and what they then have.
PROJECTS = {"pyproject.toml": r"^\[(project|tool\.poetry)\]", "setup.py": "", "setup.cfg": ""}
NOTHING = "nothing"
SHOWN = 3  # lines of an error
# The newest release that fits the machine; `latest` would be the newest, whether it fits or not.
ANY_TORCH = ">=2.0"
_EDITABLE = re.compile(r"^(?P<name>(?:.+ @ )?)file:(?P<path>/.*)$")


@frozen
class Reading:
    """What a repository or a file requests. source: what it was read from; folder: whose name the
    environment gets unless a file states one."""

    request: Request
    source: str
    folder: Path
    unread_files: tuple[str, ...] = ()


@frozen
class Proposal:
    """A spec.yml that would be written. source: what it was read from. account: what became of
    each line that was read. unread_files: that were there too. notes: decisions to check."""

    name: str
    path: Path
    text: str
    source: str
    resolution: Resolution
    account: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()
    unread_files: tuple[str, ...] = ()


@frozen
class CudaChoice:
    """The CUDA of an environment (`cpu` for none), where no file decides it, and why. cuda: None if
    only the user can say it."""

    cuda: str | None
    note: str = ""


def read_repository(folder: Path, choices: Choices, selection: Selection) -> Reading:
    """`provision init`: what a repository's files request together; without files, nothing.
    selection: the groups and extras that are taken."""
    names = [path.name for path in folder.iterdir() if path.is_file()]
    by_file: dict[str, list[Statement]] = {}
    for name in repository.files_to_read(names):
        is_text = repository.is_text(name)
        try:
            statements = read_file(folder / name, selection)
        except InvalidSpec as error:
            if not is_text and (not any(by_file.values()) or selection.groups or selection.extras):
                raise
            statements = [repository.unreadable(name, error.message)]
        if statements or not is_text:
            by_file[name] = statements
    selection.check()
    unread = repository.unread_files(names, ())
    if not by_file and unread and not choices.torch:
        raise InvalidSpec(
            f"Nothing was read: {', '.join(unread)} may say what this repository needs.",
            advice=f"provision import {unread[0]}   or, to start without it, --torch VERSION",
        )
    statements = repository.combined(list(by_file.values()))
    request = _decide(statements, choices)
    if request.is_disputed:
        statements = repository.combined(list(by_file.values()), texts_narrow=False)
        request = _decide(statements, choices)
    if "torch" not in request.content:
        read = [name for name in by_file if not repository.is_text(name)]
        _require_no_other_release(
            chain(repository.offered_releases(statements), named_releases(folder, read))
        )
    stated = {
        os.path.relpath(folder / statement.file, folder)
        for statement in statements
        if statement.kind not in ("name", "note", "ignored", "unknown")
    }
    return Reading(
        request=request,
        source=", ".join([name for name in by_file if name in stated] or by_file) or NOTHING,
        folder=folder,
        unread_files=repository.unread_files(names, {*stated, *by_file}),
    )


def _require_no_other_release(lines: Iterable[str]) -> None:
    """Raise InvalidSpec if lines that do not count name a release of PyTorch."""
    listed = "".join(f"\n  {line}" for line in islice(lines, SHOWN))
    if listed:
        raise InvalidSpec(
            f"No file that counts names a release of PyTorch; other lines do:{listed}",
            advice="Choose one, for example `--torch 2.3.1 --cuda 12.1`, or read one of the files "
            "with `provision import FILE`.",
        )


def read_one(file: Path, choices: Choices, selection: Selection) -> Reading:
    """`provision import FILE`: the same of one file. Raises InvalidSpec if nothing in it was
    understood."""
    statements = read_file(file, selection)
    selection.check()
    folder = file.absolute().parent if repository.is_project_file(file.name) else Path(file.stem)
    request = _decide(statements, choices)
    return Reading(request=request, source=file.name, folder=folder)


def _decide(statements: Sequence[Statement], choices: Choices) -> Request:
    """Raises InvalidSpec for options that are no versions."""
    options = {"torch": choices.torch or "2.3", "cpu": True, "python": choices.python}
    specs.combine({}, options, name="")
    return decide(
        statements,
        choices,
        default_python=resolver.DEFAULT_PYTHON,
        located=editable_requirement,
    )


def require_decided(reading: Reading) -> None:
    """Raise InvalidSpec if files contradict themselves, or request nothing that was understood."""
    request = reading.request
    if request.contradictions:
        raise InvalidSpec(
            "\n".join(request.contradictions),
            advice="Correct the file, or say which counts: --torch, --cuda, --cpu, --python.",
        )
    if not set(request.content) - {"channels"} and reading.source != NOTHING:
        raise InvalidSpec(
            f"{reading.source} has no requirements for an environment.",
            advice="`provision import FILE` takes another file; `provision build --torch 2.3 --cuda "
            "12.1` starts without one.",
        )
    if "torch" in request.content:  # a text that is no release, like one of ROCm
        specs.combine({}, {"torch": request.content["torch"], "cpu": True}, name="")


def choose_cuda(context: Context, request: Request, machine: HostGpus) -> CudaChoice | None:
    """The CUDA where the files leave it open; None if they or the options decide it."""
    if "cuda" in request.content or "cpu" in request.content:
        return None
    if request.cudas:
        return _allowed_cuda(request, machine)
    if machine.gpus:
        gpus = ", ".join(dict.fromkeys(machine.gpus))
        note = f"CUDA for the GPUs of this machine ({gpus}, driver {machine.driver})"
        return CudaChoice(cuda="auto", note=note)
    lab = _lab_default(context)
    if lab is not None:
        return CudaChoice(cuda=lab[0], note=f"no file states the CUDA: {lab[0]}, as {lab[1]} says")
    if request.index_cuda not in (None, CPU):
        note = (
            f"CUDA {request.index_cuda}: the index's torch {request.content['torch']} is built for "
            "it; `--cuda X.Y` or `--cpu` chooses another build"
        )
        return CudaChoice(cuda=request.index_cuda, note=note)
    return CudaChoice(cuda=None, note=machine.why or "no GPU answers here")


def _allowed_cuda(request: Request, machine: HostGpus) -> CudaChoice:
    """Of the CUDA versions that files allow, the newest that this machine is known to run."""
    cuda, suffix = request.cudas[0], ""
    torch = request.content.get("torch", ANY_TORCH)
    for candidate in request.cudas if machine.gpus else ():
        spec = specs.combine({}, {"torch": torch, "cuda": candidate}, name="")
        if not _machine_problems(spec, machine)[0]:
            cuda, suffix = candidate, " that runs here"
            break
    allowed = ", ".join(request.cudas)
    note = f"CUDA {cuda}: the newest of those that the files allow ({allowed}){suffix}"
    return CudaChoice(cuda=cuda, note=note if len(request.cudas) > 1 else "")


def _machine_problems(spec: Spec, machine: HostGpus) -> tuple[str, list[str]]:
    """Whether this machine is not known to run a spec's build (`does not run`, `may not run`), and
    why."""
    try:
        warnings = resolver.resolve(resolver.for_machine(spec, machine)).warnings
    except NoSuchBuild as error:
        return "does not run", error.advice.partition("Why")[2].splitlines()[1:]
    problems = [choice.reason for choice in warnings if choice.what in ("gpu", "driver")]
    return "may not run" if problems else "", problems


def _lab_default(context: Context) -> tuple[str, Path] | None:
    """The CUDA of the lab's machines by its lab.yml, and that file: of the lab whose environments
    these are, else of the one that the user joined."""
    folders = [context.folders.envs.parent]
    if "envs" in (settings := folder_settings()):
        folders.append(settings["envs"].parent)
    for folder in folders:
        if (folder / LAB).is_file():
            cuda = lab_definition.read_lab(folder).cuda
            if cuda:
                return cuda, folder / LAB
    return None


def no_cuda(request: Request, why: str) -> InvalidSpec:
    """The error where nobody can be asked which CUDA is meant."""
    example = suggested_cuda(request)
    return InvalidSpec(
        f"No file states the CUDA version, and this machine does not show it: {why}.",
        advice=(
            f"Give it: `--cuda {example}` for machines with GPUs, `--cpu` for a build without "
            "CUDA. `cuda:` in lab.yml sets the default of a lab."
        ),
    )


def suggested_cuda(request: Request) -> str:
    """The CUDA of the newest build that the request allows."""
    try:
        release = catalog.matching_releases(request.content.get("torch", ANY_TORCH))[-1]
    except NoSuchBuild:
        return "12.1"
    return sources.candidates_of(release.version)[0].cuda or "12.1"


def propose(
    context: Context,
    reading: Reading,
    machine: HostGpus,
    *,
    name: str | None = None,
    choice: CudaChoice | None = None,
) -> Proposal:
    """The spec.yml of a reading, judged as a build. choice: the CUDA, if the files do not decide
    it."""
    request = reading.request
    name = specs.check_name(name or environment_name(reading.request.name or reading.folder.name))
    folder = context.folders.envs / name
    options: dict[str, Any] = {**request.content}
    notes = []
    if "torch" not in options:
        options["torch"] = ANY_TORCH
        notes.append("no version of PyTorch was requested: the newest that fits was chosen")
    if choice is not None:
        options.update({"cpu": True} if choice.cuda == CPU else {"cuda": choice.cuda})
        notes += [choice.note] if choice.note else []

    def relative(located: re.Match[str]) -> str:
        return f"{located['name']}file:{os.path.relpath(located['path'], folder)}"

    for key in {"pip", "find_links"} & options.keys():
        options[key] = [_EDITABLE.sub(relative, text) for text in options[key]]
    spec = check_requirements(specs.combine({}, options, name=name))
    resolution = resolve(spec)
    moved, note = _with_own_torch(context, resolution)
    notes += [note] if note else []
    if moved:
        remaining = [text for text in spec.conda if text not in moved]
        pip = (*spec.pip, *map(conda.as_wheel, moved))
        spec = replace(spec, conda=tuple(remaining), pip=pip)
        resolution = resolve(spec)
    notes += _repository_note(name, reading)
    notes += _problems_here(resolution, machine)
    for warning in resolution.warnings:
        if warning.what not in ("gpu", "driver"):
            notes.append(f"{warning.what}: {warning.reason}")
    content = specs.content(resolution.spec)
    if "torch" not in request.content:
        content["torch"] = resolution.torch
    entries = []
    for entry in printed_entries(reading, name):
        package = entry.became.removeprefix("conda: ")
        if package in moved:
            became = f"pip: {conda.as_wheel(package)}"
            reason = "conda's package brings conda's own pytorch, and torch is a wheel"
            entry = replace(entry, outcome="translated", became=became, reason=reason)
        entries.append(entry)
    return Proposal(
        name=name,
        path=folder / SPEC,
        text=render.render_spec(name, content),
        source=reading.source,
        resolution=resolution,
        account=tuple(entries),
        notes=tuple(notes),
        unread_files=reading.unread_files,
    )


def printed_entries(reading: Reading, name: str | None) -> list[Entry]:
    """What became of each line, with next steps for the environment's name."""
    name = name or environment_name(reading.request.name or reading.folder.name)
    return [
        replace(entry, next_step=printed_step(entry.next_step, name))
        for entry in reading.request.entries
    ]


def _with_own_torch(context: Context, resolution: Resolution) -> tuple[list[str], str]:
    """The requested conda packages that bring conda's own torch beside a wheel of torch, by the
    channels' records; or a note that no channel says so."""
    requested = resolution.spec.conda
    if not requested or sources.by_name(resolution.source).manager == "conda":
        return [], ""
    platform = resolution.platforms[0]
    context.progress.info("reading which conda packages bring their own pytorch")
    silent = context.solver.unreachable_channels(resolution.channels, platform)
    if silent:
        note = (
            f"no answer from {', '.join(silent)}: whether conda packages bring their own pytorch is "
            f"not known; `provision lock {resolution.spec.name}` refuses those that do"
        )
        return [], note
    request = conda.SolveRequest(
        specs=requested, channels=resolution.channels, virtual_packages=(), platform=platform
    )
    return conda.ChannelRecords(context.solver, request).with_torch(requested), ""


def _repository_note(name: str, reading: Reading) -> list[str]:
    """How the repository itself gets in, if it is a project and no line says so."""
    for requirement in reading.request.content.get("pip", ()):
        match = _EDITABLE.fullmatch(requirement)
        if match and Path(match["path"]) == reading.folder.absolute():
            return []
    for file, table in PROJECTS.items():
        path = reading.folder / file
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
        if text is not None and re.search(table, text, re.MULTILINE):
            step = f"`provision add {name} -e .`, after the build, adds it as an editable"
            return [f"{file}: this repository is a project that no line requests; {step}"]
    return []


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


def _problems_here(resolution: Resolution, machine: HostGpus) -> list[str]:
    """Why the build does not run on this machine, or perhaps does not, and which one does."""
    if resolution.cuda is None or not machine.gpus:
        return []
    verdict, problems = _machine_problems(resolution.spec, machine)
    if not problems:
        return []
    options = resolver.build_known_to_run(resolver.for_machine(resolution.spec, machine))
    nearest = f"the nearest that is known to: `{options}`" if options else "none is known to"
    facts = "; ".join(problem.strip().rstrip(".") for problem in problems)
    return [f"this build {verdict} on this machine: {facts}; {nearest}"]
