"""What users state to pip -> keys of spec.yml: requirements, extra indexes and pages of wheels.

Names go in as they are, git repositories and editables as an address. Wheels and local projects
become wheels in the environment's folder. In spec.yml itself, a folder is an editable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from provision.adapters import uv
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.requirement_files import is_installable
from provision.core.requirement_lines import parse_lines
from provision.core.statements import PipRequirement, Statement
from provision.core.tempdirs import temporary_directory
from provision.workflow import wheel_folder
from provision.workflow.context import Context
from provision.workflow.resolution import with_names
from provision.workflow.wheel_folder import WHEELS

# PyTorch's own index, or a mirror of it: --torch and --cuda choose what comes from there.
_TORCH_INDEX = re.compile(r"/whl/(cu\d+|cpu)/?$")
# What options of a request say instead.
_OPTIONS = ("python", "cuda", "channel", "platform")


@frozen
class Requirements:
    """Items for lists of spec.yml, and the wheels that they name in the folder next to it."""

    pip: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    wheels: Mapping[str, bytes] = field(default_factory=dict)


def read(arguments: Sequence[str]) -> list[Statement]:
    """What words of the command line state, and the files that `-r FILE` among them names."""
    from provision.workflow.project_files import read_file  # 15 ms, where a file may be named

    entries = []
    for argument in arguments:
        for entry in parse_lines(argument):
            is_file = entry.kind == "include" and "://" not in entry.value
            entries += read_file(Path(entry.value).expanduser()) if is_file else [entry]
    return entries


def prepare(
    context: Context,
    entries: Sequence[Statement],
    folder: Path,
    *,
    python_of: Callable[[], str],
) -> Requirements:
    """The keys of spec.yml that lines come to. folder: the environment's, under envs. python_of:
    finds out its version, for projects of which a wheel is built.

    Writes nothing. Raises InvalidSpec with everything that cannot be taken.
    """
    _refuse(entries)
    limits: dict[str, list[str]] = {}
    for entry in entries:
        if entry.kind == "constraint" and entry.requirement and entry.requirement.specifier:
            limits.setdefault(_key(entry.requirement), []).append(entry.requirement.specifier)
    pip = []
    sources: dict[str, list[str]] = {"extra-index": [], "find-links": []}
    wheels: dict[str, bytes] = {}
    for entry in entries:
        note = ""
        requirement = entry.requirement
        if entry.kind == "pip" and requirement:
            note = entry.reason
            if requirement.source:
                pip.append(_located(context, requirement, folder, python_of, wheels))
            else:
                specifiers = [requirement.specifier, *limits.pop(_key(requirement), ())]
                specifier = ",".join(filter(None, specifiers))
                pip.append(str(replace(requirement, specifier=specifier)))
        elif _is_of_torch(entry):
            note = "--torch and --cuda choose PyTorch's builds"
        elif entry.kind in sources:
            sources[entry.kind].append(_source_item(entry.packages, entry.value, folder))
        elif entry.kind == "ignored":
            note = f"it has no effect: {entry.reason}"
        elif entry.kind in _OPTIONS:
            note = f"it has no effect: --{entry.kind} says which"
        if note:
            context.progress.info(f"`{entry.text}`: {note}")
    if limits:
        context.progress.info(f"limits of packages that are not requested: {', '.join(limits)}")
    return Requirements(
        pip=tuple(pip),
        indexes=tuple(sources["extra-index"]),
        find_links=tuple(sources["find-links"]),
        wheels=wheels,
    )


def _is_of_torch(entry: Statement) -> bool:
    """Whether it is PyTorch's index, for torch itself; other packages that are named for it come from
    it."""
    is_index = entry.kind == "extra-index" and bool(_TORCH_INDEX.search(entry.value))
    return is_index and {"torch", "torchvision", "torchaudio"}.issuperset(entry.packages)


def _refuse(entries: Sequence[Statement]) -> None:
    """Raise InvalidSpec for the lines that cannot be taken, all at once."""
    problems = []
    steps = []
    for entry in entries:
        where = f"{entry.file}:{entry.line}: " if entry.file else ""
        reason, next_step = entry.reason, entry.next_step
        if entry.kind == "index":
            reason = "the index for everything is a setting of pip's or uv's"
            next_step = f"`pip config set global.index-url {entry.value}` sets it"
        elif entry.kind == "extra-index" and not (entry.packages or _is_of_torch(entry)):
            reason = "an extra index serves only the packages that are named for it"
            next_step = f"write `PACKAGE --extra-index-url {entry.value}`"
        elif entry.credential:
            problems.append(f"{where}{entry.credential}")
            continue
        elif entry.kind == "conda":
            reason = "it is a package of conda"
            next_step = f"`provision import {entry.file}` takes the whole file, --conda a package"
        elif entry.kind in ("include", "constraints") and not entry.file:
            reason = "it is not a requirements file of this machine"
            next_step = "write the line into a requirements.txt, and name that with -r"
            if "://" in entry.value:
                next_step = "download the file, and name it with -r"
        elif entry.kind != "unknown":
            continue
        problems.append(f"{where}`{entry.text}`: {reason.rstrip('.')}.")
        if next_step:
            steps.append(f"{next_step[0].upper()}{next_step[1:]}.")
    if problems:
        raise InvalidSpec("\n".join(problems), advice=" ".join(dict.fromkeys(steps)))


def _key(requirement: PipRequirement) -> str:
    return canonicalize_name(requirement.name)


def _source_item(packages: Sequence[str], location: str, folder: Path) -> str:
    """An index or a page as spec.yml has it: `PACKAGES @ ADDRESS`; a folder relative to its own."""
    if "://" not in location:
        path = Path(location).expanduser().absolute()
        location = f"file:{os.path.relpath(path, folder.absolute())}"
    return f"{' '.join(packages)} @ {location}" if packages else location


def _located(
    context: Context,
    requirement: PipRequirement,
    folder: Path,
    python_of: Callable[[], str],
    wheels: dict[str, bytes],
) -> str:
    """The text for spec.yml of a requirement that is not from an index."""
    if requirement.is_path and not (requirement.name and requirement.source.startswith("file:")):
        path = Path(requirement.source.removeprefix("file:")).expanduser().absolute()
        if not is_installable(path):
            raise InvalidSpec(
                f"There is no wheel and no project at {path}.",
                advice="Name a wheel, or a folder with a pyproject.toml or setup.py.",
            )
        name, source = "", str(path)
        if not requirement.editable:
            wheel, wheels[wheel] = _wheel(context, path, python_of)
            name, source = wheel.split("-")[0].replace("_", "-").lower(), f"file:{WHEELS}/{wheel}"
        requirement = replace(requirement, name=name, source=source)
    elif not requirement.name:
        context.progress.info(f"looking up {requirement.source}")
    [text] = with_names([str(requirement)], folder, context.mirrors)
    return text


def _wheel(context: Context, path: Path, python_of: Callable[[], str]) -> tuple[str, bytes]:
    """The name and content of a wheel, or of that of a project's folder."""
    with temporary_directory("wheel") as temporary:
        if path.is_dir():
            context.progress.info(f"building a wheel of {path}")
            path = uv.build_wheel(path, temporary, python=python_of(), mirrors=context.mirrors)
        elif path.suffix != ".whl":
            raise InvalidSpec(
                f"{path} is neither a wheel nor a project's folder.",
                advice="Unpack a source archive and name its folder.",
            )
        return path.name, path.read_bytes()


@contextmanager
def placed(folder: Path, wheels: Mapping[str, bytes], *, keep: bool = True) -> Iterator[None]:
    """Wheels next to a spec.yml. What they replaced is put back if the block fails, or unless keep."""
    with wheel_folder.undone_on_failure(keep=keep) as written:
        for name, content in wheels.items():
            wheel_folder.place(name, content, folder, written)
        yield
