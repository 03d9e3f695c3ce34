"""What a user names to `provision add` -> requirements of spec.yml.

Names go in as they are. Wheels and local projects become wheels in the environment's folder, git
repositories and editables an address.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from provision.adapters import uv
from provision.core.errors import InvalidSpec
from provision.core.requirement_urls import GIT
from provision.core.tempdirs import temporary_directory
from provision.workflow.context import Context
from provision.workflow.wheel_folder import WHEELS, Placed, place, undo

_PATH_STARTS = ("./", "../", "/", "~")


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """Requirements for `pip` of spec.yml.

    added: the wheels that were put next to it for them, with what they replaced.
    """

    pip: tuple[str, ...]
    added: Placed


def prepare(
    context: Context, arguments: Sequence[str], folder: Path, *, python_of: Callable[[], str]
) -> Requirements:
    """The requirements of words of the command line. folder: the environment's, under envs.
    python_of: finds out its version, for projects of which a wheel is built.

    `-e FOLDER` is an editable. Raises InvalidSpec for what is neither a requirement nor there.
    """
    requirements = []
    added: Placed = {}
    try:
        for argument in arguments:
            if argument.startswith("-e "):
                requirements.append(_editable(context, _existing(argument[3:]), folder))
            elif argument.startswith(GIT):
                context.progress.info(f"looking up {argument}")
                name = uv.source_name(argument, mirrors=context.mirrors)
                requirements.append(f"{name} @ {argument}")
            elif _is_path(argument):
                wheel = _add_wheel(context, _existing(argument), folder, python_of, added)
                name = wheel.name.split("-")[0].replace("_", "-").lower()
                requirements.append(f"{name} @ file:{WHEELS}/{wheel.name}")
            else:
                _check_requirement(argument, requirements, folder.name)
                requirements.append(argument)
    except BaseException:
        undo(added)
        raise
    return Requirements(pip=tuple(requirements), added=added)


def _is_path(argument: str) -> bool:
    if argument.startswith(_PATH_STARTS):
        return True
    return argument.endswith(".whl") and "://" not in argument


def _check_requirement(argument: str, earlier: Sequence[str], name: str) -> None:
    """Raise InvalidSpec for what people write who mean something else. earlier: the requirements
    before it."""
    if argument.endswith((".txt", ".in")):
        raise InvalidSpec(
            f"`{argument}` is a file's name, not a package's.",
            advice=f"Did you mean `provision add {name} -r {argument}`?",
        )
    if re.fullmatch(r"\d+(\.\d+)*", argument):
        package = earlier[-1] if earlier else "PACKAGE"
        raise InvalidSpec(
            f"`{argument}` is a version, not a package.",
            advice=f"Did you mean `{package}=={argument}`?",
        )
    conda_form = re.fullmatch(r"([A-Za-z0-9._-]+)=([\d.*]+)(=\S+)?", argument)
    if conda_form:
        raise InvalidSpec(
            f"`{argument}` is conda's way to write a requirement.",
            advice=f"Write `{conda_form[1]}=={conda_form[2]}`, or add `--conda` to take the package "
            "from conda.",
        )
    try:
        Requirement(argument)
    except InvalidRequirement as error:
        raise InvalidSpec(
            f"`{argument}` is not a requirement: {str(error).splitlines()[0]}.",
            advice=f"For example: provision add {name} 'numpy<2'",
        ) from error


def _existing(argument: str) -> Path:
    path = Path(argument).expanduser().absolute()
    if not path.exists():
        raise InvalidSpec(f"There is no {path}.", advice="Name a wheel or a project's folder.")
    return path


def _editable(context: Context, project: Path, folder: Path) -> str:
    name = uv.source_name(f"-e {project}", mirrors=context.mirrors)
    return f"{name} @ file:{os.path.relpath(project, folder)}"


def _add_wheel(
    context: Context,
    path: Path,
    folder: Path,
    python_of: Callable[[], str],
    added: Placed,
) -> Path:
    """Put a wheel, or that of a project's folder, into the environment's folder."""
    with temporary_directory("wheel") as temporary:
        if path.is_dir():
            context.progress.info(f"building a wheel of {path}")
            path = uv.build_wheel(path, temporary, python=python_of(), mirrors=context.mirrors)
        elif path.suffix != ".whl":
            raise InvalidSpec(
                f"{path} is neither a wheel nor a project's folder.",
                advice="Unpack a source archive and name its folder.",
            )
        return place(path, folder, added)
