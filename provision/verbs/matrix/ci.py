"""`provision matrix ci`: a CI workflow that builds and tests on a lab's runners."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision import ci, render, resolver
from provision import lockfile as locks
from provision.core.atomic import atomic_write
from provision.core.errors import InvalidSpec, NoSuchBuild, ProvisionError, StaleLock
from provision.resolver import spec as specs
from provision.workflow.batch import environment_names
from provision.workflow.context import Context
from provision.workflow.render import unified_diff


@dataclass(frozen=True, kw_only=True)
class WorkflowRequest:
    """What the command line requests.

    out: None to print the workflow. gpus: None: all of a runner, up to a limit. image: also build
    and test images, where there is an engine. strict: warnings about speed fail jobs on GPUs.
    """

    format: ci.WorkflowFormat
    runners: Path
    out: Path | None = None
    across: ci.Across = "first"
    gpus: int | None = None
    image: bool = False
    strict: bool = True
    install: str | None = None
    schedule: str | None = None
    retention_days: int = ci.RETENTION_DAYS
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """A CI workflow, and where its jobs would run today."""

    text: str
    assignments: tuple[ci.Assignment, ...]


def assignments(context: Context, request: WorkflowRequest) -> tuple[ci.Assignment, ...]:
    """The jobs of each environment.

    Raises one error for all mistakes of runners.yml, or for all environments that do not resolve.
    """
    runners = ci.read_runners(request.runners)
    targets = list(_targets(context))
    result = []
    for target in targets:
        result.append(ci.assign(target, runners, gpus=request.gpus, across=request.across))
    ci.check_jobs(request.format, _jobs(result))
    return tuple(result)


def workflow(context: Context, request: WorkflowRequest) -> Workflow:
    """The workflow. Its text does not depend on the environments and runners, which its first job
    reads; they are read here too, so that their mistakes are seen before it runs.
    """
    assigned = assignments(context, request)
    text = render.render_workflow(
        request.format,
        ci.template_values(request.format, _settings(context, request)),
        made_from="the options of this command",
        remake=_remake(context, request),
        templates=context.templates,
    )
    return Workflow(text=text, assignments=assigned)


def jobs_text(context: Context, request: WorkflowRequest, assigned: Sequence[ci.Assignment]) -> str:
    """What the workflow's first job hands to the others: GitHub's outputs, or GitLab's child
    pipeline."""
    jobs, settings = _jobs(assigned), _settings(context, request)
    if request.format == "github":
        matrices = ci.github_matrices(jobs, settings)
        return "".join(f"{name}={matrix}\n" for name, matrix in matrices.items())
    return render.render_gitlab_jobs(ci.gitlab_values(jobs, settings), context.templates)


def append_summary(path: Path, request: WorkflowRequest, assigned: Sequence[ci.Assignment]) -> None:
    """Append what runs where, as Markdown."""
    with path.open("a", encoding="utf-8") as file:
        file.write(ci.summary(assigned, image=request.image))


def _jobs(assigned: Sequence[ci.Assignment]) -> list[ci.Job]:
    jobs: list[ci.Job] = []
    for assignment in assigned:
        jobs += assignment.jobs
    return jobs


def write(request: WorkflowRequest, workflow: Workflow) -> bool:
    """Write the workflow; returns whether that changed the file.

    Raises StaleLock for a file that provision did not make.
    """
    assert request.out is not None
    path = request.out
    if path.exists() and render.read_text(path) == workflow.text:
        return False
    if render.file_state(path) == "edited" and not request.force:
        raise StaleLock(
            f"{path} was edited by hand, or provision did not make it, and it differs from the "
            "workflow.",
            advice="Name another file with --output, or replace it with --force.",
        )
    atomic_write(path, workflow.text)
    return True


def diff(path: Path, workflow: Workflow) -> str:
    """How a file differs from the workflow; empty if it does not."""
    return unified_diff(path, workflow.text)


def _targets(context: Context) -> Iterator[ci.CiTarget]:
    """The targets of every environment, or one error that names every one that does not resolve."""
    errors: list[ProvisionError] = []
    for name in environment_names(context):
        try:
            yield from _targets_of_environment(context, name)
        except (InvalidSpec, NoSuchBuild) as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        message = f"{len(errors)} environments cannot be resolved: {' '.join(map(str, errors))}"
        if all(isinstance(error, NoSuchBuild) for error in errors):
            raise NoSuchBuild(message)
        raise InvalidSpec(message)


def _targets_of_environment(context: Context, name: str) -> list[ci.CiTarget]:
    folder = context.folders.envs / name
    try:
        resolution = resolver.resolve(
            specs.combine(specs.read(folder / render.SPEC), {}, name=name)
        )
    except NoSuchBuild as error:
        raise NoSuchBuild(f"{name}: {error.message}", advice=error.advice) from error
    locked = (folder / locks.FILE).is_file()
    return [
        ci.CiTarget(resolution=resolution, platform=platform, locked=locked)
        for platform in resolution.platforms
    ]


def _settings(context: Context, request: WorkflowRequest) -> ci.WorkflowSettings:
    schedule = {"schedule": request.schedule} if request.schedule else {}
    return ci.WorkflowSettings(
        install=request.install or "",
        jobs_command=tuple(_jobs_command(context, request)),
        envs=_relative(context.folders.envs),
        runners=_relative(request.runners),
        retention_days=request.retention_days,
        workflow=_relative(request.out) if request.out else None,
        image=request.image,
        strict=request.strict,
        **schedule,
    )


def _relative(path: Path) -> str:
    """A path relative to the working directory, which is the root of the repository."""
    return Path(os.path.relpath(path)).as_posix()


def _remake(context: Context, request: WorkflowRequest) -> list[str]:
    """The command that makes the workflow again."""
    argv = _command(context, request)
    if request.install:
        argv += ["--install", request.install]
    if request.schedule:
        argv += ["--schedule", request.schedule]
    if request.retention_days != ci.RETENTION_DAYS:
        argv += ["--retention-days", str(request.retention_days)]
    if request.out:
        argv += ["--output", str(request.out)]
    return argv


def _jobs_command(context: Context, request: WorkflowRequest) -> list[str]:
    """The command with which the workflow's first job learns the others."""
    argv = [*_command(context, request), "--jobs"]
    if request.format == "github":
        return argv
    # GitLab's other jobs are written by this command; GitHub's are in the workflow already.
    if request.install:
        argv += ["--install", request.install]
    if request.retention_days != ci.RETENTION_DAYS:
        argv += ["--retention-days", str(request.retention_days)]
    return argv


def _command(context: Context, request: WorkflowRequest) -> list[str]:
    """What the workflow's own command and that of its first job have in common."""
    argv = ["provision", "matrix", "ci"]
    argv += ["--format", request.format, "--runners", _relative(request.runners)]
    envs = _relative(context.folders.envs)
    if envs != "envs":
        argv += ["--envs", envs]
    if request.across != "first":
        argv += ["--across", request.across]
    if request.gpus is not None:
        argv += ["--gpus", str(request.gpus)]
    if request.image:
        argv += ["--image"]
    if not request.strict:
        argv += ["--no-strict"]
    return argv
