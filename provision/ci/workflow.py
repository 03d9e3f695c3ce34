"""Jobs -> the values of a CI template.

Every text from outside is checked here or where it is read: a workflow must never contain an
expression that somebody else wrote.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from provision.catalog.data_files import load
from provision.ci.assignment import Job
from provision.ci.runners import TIMEOUT_MIN
from provision.core.errors import InvalidSpec
from provision.core.platforms import Platform

WorkflowFormat = Literal["github", "gitlab"]
FORMATS: tuple[WorkflowFormat, ...] = ("github", "gitlab")
# GitHub: "A job matrix can generate a maximum of 256 jobs per workflow run" (its documentation of
# workflow syntax).
MATRIX_MAX = 256
# In the checkout: GitHub's cache action and GitLab both need a path there.
CACHE = ".provision/cache"
DATA = ".provision/data"
# Weekly, off the full hour, when many schedules start late.
SCHEDULE = "17 4 * * 1"

SAFE_PATH = r"[A-Za-z0-9_][A-Za-z0-9._/-]*"
CRON = r"[0-9A-Za-z*,/-]+( [0-9A-Za-z*,/-]+){4}"
# What pip may install on a runner. Not a name: whoever owns that name on the runner's index could
# run code there. A checkout, a wheel in the repository, a commit, or a wheel with its hash.
INSTALL = (
    r"\.",
    r"(\./)?[A-Za-z0-9_][A-Za-z0-9._/+-]*\.whl",
    r"git\+(https|ssh)://[A-Za-z0-9._~:/@%+-]+@[0-9a-f]{40}",
    r"https?://[A-Za-z0-9._~:/@%+-]+\.whl#sha256=[0-9a-f]{64}",
)


@dataclass(frozen=True, kw_only=True)
class WorkflowSettings:
    """The settings of a workflow besides its jobs."""

    install: str  # what pip installs; one of the forms of INSTALL
    envs: str = "envs"  # relative to the repository's root
    schedule: str = SCHEDULE
    workflow: str | None = None  # the workflow file's path, if it is in the repository

    def mistakes(self) -> list[str]:
        """All invalid settings, in sentences."""
        mistakes = []
        if not any(re.fullmatch(form, self.install) for form in INSTALL):
            problem = f"`{self.install}` is none of these." if self.install else "It is missing."
            mistakes.append(
                "--install must say where runners get provision: `.` (the checkout is provision "
                "itself), a wheel in the repository (tools/NAME.whl), git+https://HOST/REPO@COMMIT "
                f"or https://HOST/NAME.whl#sha256=HASH. {problem}"
            )
        if not re.fullmatch(SAFE_PATH, self.envs) or ".." in self.envs.split("/"):
            mistakes.append(
                "The folder of environments must be in the repository, and this command must run "
                f"in its root; `{self.envs}` is not."
            )
        if not re.fullmatch(CRON, self.schedule):
            mistakes.append(
                f"--schedule must be five fields of cron like `{SCHEDULE}`, not `{self.schedule}`."
            )
        return mistakes


def template_values(
    format: WorkflowFormat, jobs: Sequence[Job], settings: WorkflowSettings
) -> dict[str, Any]:
    """The values of a format's template.

    Raises InvalidSpec, with all mistakes, for what that format cannot express.
    """
    mistakes = [*settings.mistakes(), *_format_mistakes(format, jobs)]
    if mistakes:
        raise InvalidSpec(" ".join(mistakes))
    paths = []
    if not any(job.target.options for job in jobs):
        paths.append(f"{settings.envs}/**")
    if settings.workflow and re.fullmatch(r"[A-Za-z0-9._/-]+", settings.workflow):
        paths.append(settings.workflow)
    return {
        "settings": settings,
        "paths": paths,
        "actions": _ci_facts()["actions"],
        "image": _image(),
        "cache": CACHE,
        "data": DATA,
        "gpu": [_entry(format, job) for job in jobs if job.on_gpu],
        "rehearsal": [_entry(format, job) for job in jobs if not job.on_gpu],
    }


def _format_mistakes(format: WorkflowFormat, jobs: Sequence[Job]) -> list[str]:
    mistakes = []
    runners = {job.runner.name: job.runner for job in jobs if job.runner}
    for runner in runners.values():
        if format == "github" and runner.image:
            mistakes.append(
                f"Runner {runner.name} names an image, which is for GitLab's docker executor and "
                "means nothing on GitHub."
            )
    hosted_platforms = {job.target.platform for job in jobs if job.runner is None}
    for platform in sorted(hosted_platforms):
        if _hosted_label(format, platform) is None:
            mistakes.append(
                f"{format} itself has no known CPU runner for {platform}: describe one of yours "
                "in runners.yml, without `gpu`."
            )
    if format == "github":
        for on_gpu in (True, False):
            count = sum(job.on_gpu is on_gpu for job in jobs)
            if count > MATRIX_MAX:
                mistakes.append(
                    f"GitHub runs at most {MATRIX_MAX} jobs of one matrix, and this is {count}: "
                    "ask for fewer."
                )
    return mistakes


def _entry(format: WorkflowFormat, job: Job) -> dict[str, Any]:
    """One job, as the templates show it. `own` marks a self-hosted runner."""
    runner, target = job.runner, job.target
    place: dict[str, Any]
    if runner is None:
        label = _hosted_label(format, target.platform)
        place = {"runner": label, "labels": (label,), "image": None, "cache": None}
        timeout = TIMEOUT_MIN
    else:
        place = {
            "runner": runner.name,
            "labels": runner.labels,
            "image": runner.image,
            "cache": runner.cache,
        }
        timeout = runner.timeout_min
    return {
        **place,
        "own": runner is not None,
        "timeout": timeout,
        "environment": target.name,
        "platform": target.platform,
        "options": target.options,
        "locked": target.locked,
        "title": f"{target.name} on {place['runner']}",
        "commands": commands(job),
        "about": _about(job),
        "notes": job.notes,
        "needs_torch_index": target.resolution.needs_local_build,
        "ranks": job.ranks,
    }


def commands(job: Job) -> list[str]:
    """What a job runs, as shell commands: lock, build, smoke test."""
    environment = [job.target.name, *job.target.options]
    backend = "--require-gpu" if job.on_gpu else "--backend=gloo"
    verbs = [
        ["lock", *environment],
        ["build", *environment, "--no-image", "--no-smoke", "--no-kernel"],
        ["smoke", job.target.name, backend, f"--ranks={job.ranks}"],
    ]
    return [shlex.join(["provision", *verb]) for verb in verbs]


def _about(job: Job) -> str:
    """The environment, and the GPUs and driver of the runner."""
    resolution, runner = job.target.resolution, job.runner
    device = f"CUDA {resolution.cuda}" if resolution.cuda else "CPU"
    text = f"torch {resolution.torch}, {device}, Python {resolution.python}"
    if resolution.cuda and resolution.driver_floor:
        text += f"; needs driver {resolution.driver_floor}"
    if job.on_gpu and runner is not None:
        assert runner.gpu is not None
        text += (
            f"; {runner.name} has {runner.gpus} x {runner.gpu.name} ({runner.gpu.architecture}) "
            f"and driver {runner.driver}"
        )
    return text


def _hosted_label(format: WorkflowFormat, platform: Platform) -> str | None:
    """The label of the service's own CPU runner, or None if we know of no such runner.

    GitLab's runner needs no label, and runs jobs in an image.
    """
    row = _ci_facts()["hosted"][format].get(platform)
    return row["label"] if row else None


@functools.cache
def _ci_facts() -> Mapping[str, Any]:
    facts = load("ci.yml")
    assert isinstance(facts, dict)
    return facts


@functools.cache
def _image() -> str:
    """The image, by digest, of jobs on GitLab's own runners: the base of our own images."""
    for row in load("base_images.yml")["images"]:
        if row["use"] == "base":
            return f"{row['reference']}@{row['digest']}"
    raise AssertionError("base_images.yml has no base")
