"""`provision matrix ci`: a CI workflow that builds and tests on a lab's runners."""

from __future__ import annotations

import os
from pathlib import Path

from provision import ci, render, resolver
from provision.core.atomic import atomic_write
from provision.core.dataclass import frozen
from provision.core.errors import NoSuchBuild, StaleLock
from provision.resolver import spec as specs
from provision.workflow.batch import environment_names
from provision.workflow.context import Context
from provision.workflow.index_facts import ensure_release


@frozen
class WorkflowRequest:
    """What the command line requests. out: None to print the workflow."""

    runners: Path
    out: Path | None = None
    force: bool = False


@frozen
class Workflow:
    """A CI workflow, or what its first job hands to the others; and where the jobs would run today."""

    text: str
    jobs: tuple[ci.Job, ...]
    summary: str


def workflow(context: Context, request: WorkflowRequest, *, only_jobs: bool = False) -> Workflow:
    """The workflow. Its text does not depend on the environments and runners, which its first job
    reads; they are read here too, so that their mistakes are seen before it runs.

    only_jobs: instead, what the first job hands to the others: GitHub's outputs.
    """
    file = ci.read_runners(request.runners)
    jobs: list[ci.Job] = []
    for name in environment_names(context):
        for target in _targets_of_environment(context, name):
            jobs += ci.assign(
                target, file.runners, gpus=file.workflow.gpus, across=file.workflow.across
            )
    ci.check_jobs(jobs)
    if only_jobs:
        matrices = ci.job_matrices(jobs, file.workflow)
        text = "".join(f"{name}={matrix}\n" for name, matrix in matrices.items())
    else:
        command = _command(context, request)
        paths = ci.WorkflowPaths(
            jobs_command=(*command, "--jobs"),
            envs=_relative(context.folders.envs),
            runners=_relative(request.runners),
            workflow=_relative(request.out) if request.out else None,
        )
        text = render.render_workflow(
            ci.template_values(file.workflow, paths),
            made_from=paths.runners,
            remake=[*command, "--output", str(request.out)] if request.out else command,
            templates=context.templates,
        )
    summary = ci.summary(jobs, image=file.workflow.image)
    return Workflow(text=text, jobs=tuple(jobs), summary=summary)


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


def _targets_of_environment(context: Context, name: str) -> list[ci.CiTarget]:
    folder = context.folders.envs / name
    spec = specs.combine(specs.read(folder / render.SPEC), {}, name=name)
    try:
        ensure_release(context.folders, context.mirrors, spec)
        resolution = resolver.resolve(spec)
    except NoSuchBuild as error:
        raise NoSuchBuild(f"{name}: {error.message}", advice=error.advice) from error
    return [
        ci.CiTarget(resolution=resolution, platform=platform) for platform in resolution.platforms
    ]


def _relative(path: Path) -> str:
    """A path relative to the working directory, which is the root of the repository."""
    return Path(os.path.relpath(path)).as_posix()


def _command(context: Context, request: WorkflowRequest) -> list[str]:
    """What the workflow's own command and that of its first job have in common."""
    argv = ["provision", "matrix", "ci"]
    runners, envs = _relative(request.runners), _relative(context.folders.envs)
    if runners != str(ci.FILE):
        argv.append(runners)
    if envs != "envs":
        argv += ["--envs", envs]
    return argv
