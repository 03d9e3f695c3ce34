"""`provision matrix ci`: environments of envs/, or cells of the matrix, and a lab's runners -> a CI workflow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision import __version__, ci, render, resolver
from provision import lockfile as locks
from provision.commands.batch import difference, matrix_requests, named
from provision.commands.plan import BuildRequest, Context
from provision.core.atomic import atomic_write
from provision.core.errors import InvalidSpec, NoSuchBuild, ProvisionError, StaleLock
from provision.core.types import Resolution
from provision.resolver import spec

# Keys of a spec whose option has another name, or none of its own.
SPELLED = {"channels": "--channel", "platforms": "--platform"}


@dataclass(frozen=True, kw_only=True)
class WorkflowRequest:
    """What the command line asked for."""

    format: ci.WorkflowFormat
    runners: Path
    out: Path | None = None  # None: to be shown, not written
    builds: Mapping[str, Any] = field(
        default_factory=dict
    )  # which builds of the table; none: the environments of the envs folder
    newest: bool = False  # of each minor release only its newest patch
    gpus: int = 1
    install: str | None = None
    schedule: str | None = None
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """A CI workflow, and where each of its jobs runs."""

    text: str
    jobs: tuple[ci.Job, ...]


def workflow(context: Context, request: WorkflowRequest) -> Workflow:
    """The workflow. Raises one error that names every mistake of runners.yml, or every environment that cannot be resolved."""
    runners = ci.read_runners(request.runners)
    targets = list(_targets(context, request))
    jobs = tuple(ci.assign(target, runners, gpus=request.gpus) for target in targets)
    text = render.render_workflow(
        request.format,
        ci.template_values(request.format, jobs, _settings(context, request)),
        made_from=f"{'the matrix' if _asked(request) else _shown(context.where.envs) + '/*/spec.yml'} and {request.runners}",
        remake=_remake(context, request),
        templates=context.templates,
    )
    return Workflow(text=text, jobs=jobs)


def write(request: WorkflowRequest, made: Workflow) -> bool:
    """Put the workflow in its place; whether that changed anything. Raises StaleLock for a file that is not ours."""
    assert request.out is not None
    if not pending(request.out, made.text):
        return False
    if render.state(request.out) == "edited" and not request.force:
        raise StaleLock(
            f"{request.out} was edited by hand or is somebody's own, and differs from what would be written.",
            advice="Name another file with --output, or replace it with --force.",
        )
    atomic_write(request.out, made.text)
    return True


def pending(path: Path, text: str) -> bool:
    """Whether a file is not exactly this text."""
    return not path.exists() or render.read(path) != text


def diff(path: Path, made: Workflow) -> str:
    """How a file differs from the workflow as it would be made now; empty if it does not."""
    return "".join(difference(path, made.text))


def _targets(context: Context, request: WorkflowRequest) -> Iterator[ci.CiTarget]:
    if _asked(request):
        yield from _each(
            matrix_requests(request.builds, newest=request.newest, relock=False),
            lambda build: _from_table(context, build),
        )
    else:
        yield from _each(named(context), lambda name: _from_folder(context, name))


def _each(
    items: Iterable[Any], targets: Callable[[Any], list[ci.CiTarget]]
) -> Iterator[ci.CiTarget]:
    """The targets of every item, or one error that names every item that has none."""
    failed: list[ProvisionError] = []
    for item in items:
        try:
            yield from targets(item)
        except (InvalidSpec, NoSuchBuild) as error:
            failed.append(error)
    if len(failed) == 1:
        raise failed[0]
    if failed:
        kind = (
            NoSuchBuild if all(isinstance(error, NoSuchBuild) for error in failed) else InvalidSpec
        )
        raise kind(f"{len(failed)} environments cannot be resolved: {' '.join(map(str, failed))}")


def _from_folder(context: Context, name: str) -> list[ci.CiTarget]:
    path = context.where.envs / name / render.SPEC
    try:
        resolution = resolver.resolve(spec.combine(spec.read(path), {}, name=name))
    except NoSuchBuild as error:
        raise NoSuchBuild(f"{name}: {error.message}", advice=error.advice) from error
    return _on_each_platform(context, resolution)


def _asked(request: WorkflowRequest) -> list[str]:
    """The options that say which builds are meant, as a command line; none for the environments of the envs folder."""
    return list(
        options(
            {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in request.builds.items()
                if value
            }
        )
    )


def _from_table(context: Context, build: BuildRequest) -> list[ci.CiTarget]:
    """The same request as `provision matrix lock` makes of it."""
    resolution = resolver.resolve(spec.combine({}, build.options, name=""))
    words = tuple(options(spec.content(resolution.spec)))
    return _on_each_platform(context, resolution, words)


def _on_each_platform(
    context: Context, resolution: Resolution, words: tuple[str, ...] = ()
) -> list[ci.CiTarget]:
    locked = (context.where.envs / resolution.spec.name / locks.FILE).is_file()
    return [
        ci.CiTarget(resolution=resolution, platform=platform, options=words, locked=locked)
        for platform in resolution.platforms
    ]


def options(asked: Mapping[str, Any]) -> Iterator[str]:
    """The command line that asks for what a spec.yml with this content does."""
    for key, value in asked.items():
        flag = SPELLED.get(key, "--" + key.replace("_", "-"))
        if value is True:
            yield flag
        elif value is False:
            yield flag.replace("--", "--no-", 1)
        else:
            yield from (
                f"{flag}={item}" for item in (value if isinstance(value, list) else [value])
            )


def _settings(context: Context, request: WorkflowRequest) -> ci.WorkflowSettings:
    given = {"schedule": request.schedule} if request.schedule else {}
    return ci.WorkflowSettings(
        install=request.install or f"provision=={__version__}",
        envs=_shown(context.where.envs),
        workflow=_shown(request.out) if request.out else None,
        **given,
    )


def _shown(path: Path) -> str:
    """A path as seen from the folder that this runs in: the repository's root."""
    return Path(os.path.relpath(path)).as_posix()


def _remake(context: Context, request: WorkflowRequest) -> list[str]:
    words = [
        "provision",
        "matrix",
        "ci",
        "--format",
        request.format,
        "--runners",
        str(request.runners),
        *_asked(request),
    ]
    words += ["--newest"] if request.newest else []
    words += ["--envs", _shown(context.where.envs)] if _shown(context.where.envs) != "envs" else []
    words += ["--gpus", str(request.gpus)] if request.gpus != 1 else []
    words += ["--install", request.install] if request.install else []
    words += ["--schedule", request.schedule] if request.schedule else []
    return words + (["--output", str(request.out)] if request.out else [])
