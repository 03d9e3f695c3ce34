"""The code that an image holds, and whether a command finds its script in the container."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path, PurePosixPath

from packaging.utils import canonicalize_name

from provision import launch
from provision.core.container import WORKSPACE
from provision.core.errors import InvalidSpec
from provision.core.types import LockedPackage
from provision.image.code import Code, built_code, read_code
from provision.workflow.context import Context
from provision.workflow.plan import Plan

SCRIPTS = (".py", ".sh")


def image_code(context: Context, plan: Plan) -> Code | None:
    """The code of an environment's image as it is now; None if spec.yml names none."""
    code = plan.resolution.spec.code
    if code is None:
        return None
    return read_code(Path(os.path.normpath(context.folders.envs / plan.name / code)))


def relative_script(
    command: Sequence[str], folder: Path, packages: Iterable[LockedPackage]
) -> str | None:
    """The first script of a command that is looked for in its working folder: `train.py`, what
    `bash run.sh` runs, or what holds `-m lab.train` if it is in `folder`.

    packages: of the environment, which are no modules of the folder.
    """
    installed = {canonicalize_name(package.name) for package in packages}
    for token, following in zip(command, [*command[1:], ""]):
        if token == "-c":
            return None
        if token == "-m":
            top = following.partition(".")[0]
            for name in (top, f"{top}.py"):
                if top and canonicalize_name(top) not in installed and (folder / name).exists():
                    return name
        elif token.endswith(SCRIPTS) and not token.startswith(("-", "/")):
            return token
    return None


def require_script(
    context: Context, plan: Plan, command: Sequence[str], mounts: Sequence[launch.ContainerMount]
) -> None:
    """Raise InvalidSpec for a script or module of the working folder that the container lacks.

    A mount of the container's working folder brings it (if a folder of this machine is mounted, the
    script must be there), or else the image's code.
    """
    packages = plan.lock.packages if plan.lock else ()
    script = relative_script(command, Path.cwd(), packages)
    if script is None:
        return
    target = PurePosixPath(os.path.normpath(PurePosixPath(WORKSPACE, script)))
    for mount in mounts:
        if target.is_relative_to(mount.target):
            source = Path(mount.source, target.relative_to(mount.target))
            if mount.is_volume or not Path(mount.source).is_dir() or source.exists():
                return
            raise InvalidSpec(
                f"There is no {script} in {mount.source}, which is mounted as {mount.target}.",
                advice="Start it from the script's folder, or write its path in the container.",
            )
    code, name = image_code(context, plan), plan.name
    if code is not None:
        paths: Collection[str] | None = [entry.path for entry in code.entries]
    else:  # by `image build --code`, of which spec.yml says nothing
        paths = built_code(context.folders.images / name)
    if paths is None or str(target)[1:] not in paths:
        content = "packages alone" if paths is None else "the code that git tracks"
        raise InvalidSpec(
            f"{script} is not in the image of {name}, which holds {content}, and no mount brings it.",
            advice=f"Put it there: `git add` it, and `provision image build {name} --code .`, or `code: "
            f"../..` in {plan.folder / 'spec.yml'} for every build. Or mount it: --mount "
            f"FOLDER:{WORKSPACE}. Paths inside the image begin with a slash.",
        )
