"""Jobs -> the values that a CI template shows. Every text that came from outside is checked here or was checked where it was read:
a workflow must never hold an expression that somebody else wrote."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from provision.catalog.loading import load
from provision.ci.assignment import Job
from provision.ci.runners import TIMEOUT_MIN, Runner
from provision.core.errors import InvalidSpec
from provision.core.types import Platform

WorkflowFormat = Literal["github", "gitlab"]
FORMATS: tuple[WorkflowFormat, ...] = ("github", "gitlab")
# GitHub: "A job matrix can generate a maximum of 256 jobs per workflow run" (its documentation of workflow syntax).
MATRIX_MAX = 256
CACHE = ".provision/cache"  # in the checkout: a cache action and GitLab both want a path that they can name
DATA = ".provision/data"
# Weekly, off the full hour, when schedules of many start late.
SCHEDULE = "17 4 * * 1"

SAFE_PATH = r"[A-Za-z0-9_][A-Za-z0-9._/-]*"
CRON = r"[0-9A-Za-z*,/-]+( [0-9A-Za-z*,/-]+){4}"
INSTALL = r"\.|[A-Za-z0-9][A-Za-z0-9 ._\[\],<>=!~+-]*"


@dataclass(frozen=True, kw_only=True)
class WorkflowSettings:
    """What a workflow is like beyond its jobs."""

    install: str  # what pip installs: provision==V, or . for the checkout
    envs: str = "envs"  # relative to the repository's root
    schedule: str = SCHEDULE
    workflow: str | None = None  # where the workflow file lies in the repository, if it does

    def mistakes(self) -> list[str]:
        """Everything that is not what it must be, in sentences."""
        found = []
        if not re.fullmatch(INSTALL, self.install):
            found.append(
                f"--install is a requirement like provision==1.2, or `.` for the checkout; not `{self.install}`."
            )
        if not re.fullmatch(SAFE_PATH, self.envs) or ".." in self.envs.split("/"):
            found.append(
                f"The folder of environments must lie in the repository, from whose root this runs; not `{self.envs}`."
            )
        if not re.fullmatch(CRON, self.schedule):
            found.append(
                f"--schedule is five fields of cron like `{SCHEDULE}`, not `{self.schedule}`."
            )
        return found


def template_values(
    format: WorkflowFormat, jobs: Sequence[Job], settings: WorkflowSettings
) -> dict[str, Any]:
    """What the template of a format shows. Raises InvalidSpec for what that format cannot say."""
    mistakes = [*settings.mistakes(), *_format_mistakes(format, jobs)]
    if mistakes:
        raise InvalidSpec(" ".join(mistakes))
    paths = [f"{settings.envs}/**"] if not any(job.target.options for job in jobs) else []
    if settings.workflow and re.fullmatch(r"[A-Za-z0-9._/-]+", settings.workflow):
        paths.append(settings.workflow)
    return {
        "settings": settings,
        "paths": paths,
        "actions": _facts()["actions"],
        "image": _image(),
        "cache": CACHE,
        "data": DATA,
        "gpu": [_entry(format, job) for job in jobs if job.on_gpu],
        "rehearsal": [_entry(format, job) for job in jobs if not job.on_gpu],
    }


def _format_mistakes(format: WorkflowFormat, jobs: Sequence[Job]) -> list[str]:
    found = []
    for runner in {job.runner.name: job.runner for job in jobs if job.runner}.values():
        if format == "github" and runner.image:
            found.append(
                f"Runner {runner.name} names an image, which is for GitLab's docker executor: on GitHub it has no meaning here."
            )
    for platform in sorted(
        {
            job.target.platform
            for job in jobs
            if job.runner is None and not _hosted(format, job.target.platform)
        }
    ):
        found.append(
            f"{format} itself offers no CPU runner that is known for {platform}: describe one of yours in runners.yml, without `gpu`."
        )
    for kind in (True, False) if format == "github" else ():
        count = sum(job.on_gpu is kind for job in jobs)
        if count > MATRIX_MAX:
            found.append(
                f"GitHub runs at most {MATRIX_MAX} jobs of one matrix, and this is {count}: ask for fewer."
            )
    return found


def _entry(format: WorkflowFormat, job: Job) -> dict[str, Any]:
    """One job, as the templates show it. A runner of the lab's own is told from what the service offers by `own`."""
    runner, target = job.runner, job.target
    hosted = None if runner else _hosted(format, target.platform)
    return {
        "environment": target.name,
        "platform": target.platform,
        "options": target.options,
        "locked": target.locked,
        "title": f"{target.name} on {runner.name if runner else hosted}",
        "commands": commands(job),
        "about": _about(job),
        "notes": job.notes,
        "needs_torch_index": target.resolution.needs_local_build,
        "runner": runner.name if runner else hosted,
        "own": runner is not None,
        "labels": runner.labels if runner else (hosted,),
        "image": runner.image if runner else None,
        "cache": runner.cache if runner else None,
        "timeout": runner.timeout_min if runner else TIMEOUT_MIN,
        "ranks": job.ranks,
    }


def commands(job: Job) -> list[str]:
    """What a job runs, as shell commands: lock, build, smoke test."""
    asked = [job.target.name, *job.target.options]
    smoke = ["--require-gpu" if job.on_gpu else "--backend=gloo", f"--ranks={job.ranks}"]
    verbs = [
        ["lock", *asked],
        ["build", *asked, "--no-image", "--no-smoke", "--no-kernel"],
        ["smoke", job.target.name, *smoke],
    ]
    return [shlex.join(["provision", *words]) for words in verbs]


def _about(job: Job) -> str:
    """What the environment is, and what of the runner made it fit."""
    resolution = job.target.resolution
    build = f"torch {resolution.torch}, {'CUDA ' + resolution.cuda if resolution.cuda else 'CPU'}, Python {resolution.python}"
    needs = (
        f"; needs driver {resolution.driver_floor}"
        if resolution.cuda and resolution.driver_floor
        else ""
    )
    return build + needs + (f"; {_offers(job.runner)}" if job.on_gpu and job.runner else "")


def _offers(runner: Runner) -> str:
    assert runner.gpu is not None
    return f"{runner.name} has {runner.gpus} x {runner.gpu.name} ({runner.gpu.architecture}) and driver {runner.driver}"


def _hosted(format: WorkflowFormat, platform: Platform) -> str | None:
    """The label of the service's own CPU runner. GitLab's needs none, and runs jobs in an image."""
    row = _facts()["hosted"][format].get(platform)
    return row["label"] if row else None


@functools.cache
def _facts() -> Mapping[str, Any]:
    facts = load("ci.yml")
    assert isinstance(facts, dict)
    return facts


@functools.cache
def _image() -> str:
    """Where jobs on GitLab's own runners run: the image that environments lie on, by digest."""
    row = next(row for row in load("base_images.yml")["images"] if row["use"] == "base")
    return f"{row['reference']}@{row['digest']}"
