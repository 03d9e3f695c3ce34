"""The values of CI templates, and the jobs as their first job hands them to the others.

Every text from outside is checked here or where it is read: a workflow must never contain an
expression that somebody else wrote.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from provision.catalog.data_files import load
from provision.ci.assignment import Job, RunnerAssignment
from provision.ci.runners import ADVICE, FILE, Runner, WorkflowSettings
from provision.core.errors import InvalidSpec
from provision.core.platforms import PLATFORM, Platform

WorkflowFormat = Literal["github", "gitlab"]
# GitHub: "A job matrix can generate a maximum of 256 jobs per workflow run" (its documentation of
# workflow syntax).
MATRIX_MAX = 256
# In the checkout: GitHub's cache action and GitLab both need a path there.
CACHE = ".provision/cache"
DATA = ".provision/data"
EVIDENCE = ".provision/evidence"  # GitLab's; on GitHub it is in the job's temporary folder
SAFE_PATH = r"[A-Za-z0-9_][A-Za-z0-9._/-]*"


@dataclass(frozen=True, kw_only=True)
class WorkflowPaths:
    """Paths relative to the repository's root, and the command of the workflow's first job.

    workflow: of the workflow's file, if it is in the repository.
    """

    jobs_command: tuple[str, ...]
    envs: str = "envs"
    runners: str = str(FILE)
    workflow: str | None = None

    def check(self) -> None:
        """Raise InvalidSpec for what no workflow can name."""
        mistakes = []
        if not _is_in_repository(self.envs):
            mistakes.append(
                "The folder of environments must be in the repository, and this command must run "
                f"in its root; `{self.envs}` is not."
            )
        if not _is_in_repository(self.runners):
            mistakes.append(
                "The workflow's first job reads the file of runners, so that file must be in the "
                f"repository; `{self.runners}` is not."
            )
        if mistakes:
            raise InvalidSpec("\n".join(mistakes))


def _is_in_repository(path: str) -> bool:
    return re.fullmatch(SAFE_PATH, path) is not None and ".." not in path.split("/")


def template_values(
    format: WorkflowFormat, settings: WorkflowSettings, paths: WorkflowPaths
) -> dict[str, object]:
    """The values of a workflow's template: everything but the jobs, which its first job computes.

    Raises InvalidSpec for paths that no workflow can have, and without `install`.
    """
    paths.check()
    _require_install(settings)
    triggers = [paths.runners, f"{paths.envs}/**"]
    if paths.workflow and re.fullmatch(r"[A-Za-z0-9._/-]+", paths.workflow):
        triggers.append(paths.workflow)
    return {
        "settings": settings,
        "envs": paths.envs,
        "paths": triggers,
        "jobs_command": shlex.join(paths.jobs_command),
        "actions": _ci_facts()["actions"],
        "label": _hosted_label(format, PLATFORM),
        "image": _image(),
        "cache": CACHE,
        "data": DATA,
    }


def _require_install(settings: WorkflowSettings) -> None:
    if not settings.install:
        raise InvalidSpec(
            "The file of runners does not say where runners get provision.",
            advice=f"Write `install:` under `workflow:`. {ADVICE}",
        )


def check_jobs(format: WorkflowFormat, jobs: Sequence[Job]) -> None:
    """Raise InvalidSpec with everything that the service cannot run."""
    mistakes = list(_format_mistakes(format, jobs))
    if mistakes:
        raise InvalidSpec("\n".join(mistakes))


def _format_mistakes(format: WorkflowFormat, jobs: Sequence[Job]) -> Iterator[str]:
    runners = {job.runner.name: job.runner for job in jobs if job.runner}
    for runner in runners.values():
        if format == "github" and runner.image:
            yield (
                f"Runner {runner.name} names an image, which is for GitLab's docker executor and "
                "means nothing on GitHub."
            )
    hosted_platforms = {job.target.platform for job in jobs if job.runner is None}
    for platform in sorted(hosted_platforms):
        if _hosted_label(format, platform) is None:
            yield (
                f"{format} itself has no known CPU runner for {platform}: describe one of yours "
                "in runners.yml, without `gpu`."
            )
    if format == "github":
        for is_self_hosted in (True, False):
            count = sum((job.runner is not None) is is_self_hosted for job in jobs)
            if count > MATRIX_MAX:
                yield (
                    f"GitHub runs at most {MATRIX_MAX} jobs of one matrix, and this is {count}: "
                    "ask for fewer."
                )


def github_matrices(jobs: Sequence[Job], settings: WorkflowSettings) -> dict[str, str]:
    """The two matrices of GitHub's workflow, as JSON: jobs on the lab's own machines, and on
    GitHub's. Empty text if there are no such jobs, because GitHub refuses an empty matrix.
    """
    matrices = {}
    for name, is_self_hosted in (("own", True), ("hosted", False)):
        entries = []
        for job in jobs:
            if (job.runner is not None) is is_self_hosted:
                entries.append(_github_entry(job, settings))
        matrices[name] = json.dumps({"include": entries}) if entries else ""
    return matrices


def _github_entry(job: Job, settings: WorkflowSettings) -> dict[str, object]:
    runner = _runner("github", job)
    has_image = tests_image(job, settings.image)
    return {
        "environment": job.target.name,
        "platform": job.target.platform,
        "runner": runner.name,
        "labels": runner.labels,
        "timeout": runner.timeout_min,
        "cache": runner.cache or "",
        "ranks": job.ranks,
        "device": _device_setting(job),
        "strict": "strict=true" if is_strict(job, settings) else "",
        "image": "--image" if has_image else "--no-image",
        "place": "both" if has_image else "prefix",
    }


def gitlab_values(jobs: Sequence[Job], settings: WorkflowSettings, envs: str) -> dict[str, object]:
    """The values of the template of GitLab's child pipeline, which has one job for each of ours."""
    _require_install(settings)
    entries = []
    for job in jobs:
        runner = _runner("gitlab", job)
        entries.append(
            {
                "runner": runner.name,
                "labels": runner.labels,
                "timeout": runner.timeout_min,
                "cache": runner.cache,
                "image": runner.image,
                "own": job.runner is not None,
                "environment": job.target.name,
                "platform": job.target.platform,
                "locked": job.target.locked,
                "title": f"{job.target.name} on {runner.name}",
                "commands": commands(job, settings),
                "removes_image": tests_image(job, settings.image),
                "about": describe_job(job),
                "notes": job.notes,
            }
        )
    return {
        "settings": settings,
        "envs": envs,
        "default_image": _image(),
        "cache": CACHE,
        "data": DATA,
        "evidence": EVIDENCE,
        "jobs": entries,
    }


def _runner(format: WorkflowFormat, job: Job) -> Runner:
    """The runner of a job; where it has none, the service's own. GitLab's has no label."""
    if job.runner is not None:
        return job.runner
    label = _hosted_label(format, job.target.platform)
    assert label is not None  # as `check_jobs` has found
    return Runner(name=label, labels=(label,))


def tests_image(job: Job, image: bool) -> bool:
    """Whether a job also builds and tests the environment's image."""
    return image and job.on_gpu and job.runner is not None and job.runner.engine


def is_strict(job: Job, settings: WorkflowSettings) -> bool:
    """Whether warnings about speed fail a job. A rehearsal on a CPU measures no GPU."""
    return settings.strict and job.on_gpu


def _device_setting(job: Job) -> str:
    return "require_gpu=true" if job.on_gpu else "backend=gloo"


def commands(job: Job, settings: WorkflowSettings) -> list[str]:
    """What a job of GitLab runs, as shell commands: lock, build, smoke test."""
    has_image = tests_image(job, settings.image)
    smoke = ["smoke", job.target.name, f"--set={_device_setting(job)}", f"--set=ranks={job.ranks}"]
    if is_strict(job, settings):
        smoke += ["--set=strict=true"]
    smoke += [f"--in={'both' if has_image else 'prefix'}"]
    smoke += [f"--output={EVIDENCE}", f"--junit={EVIDENCE}/junit.xml"]
    image_option = "--image" if has_image else "--no-image"
    verbs = [
        ["lock", job.target.name],
        ["build", job.target.name, image_option, "--no-smoke", "--no-kernel"],
        smoke,
    ]
    return [shlex.join(["provision", *verb]) for verb in verbs]


def summary(assignments: Sequence[RunnerAssignment], *, image: bool) -> str:
    """What runs where, and what is not tested, as Markdown."""
    lines = ["| environment | platform | runner | tests | ranks |", "|---|---|---|---|---|"]
    remarks = []
    for assignment in assignments:
        for job in assignment.jobs:
            runner = job.runner.name if job.runner else "of the service"
            device = job.runner.gpu.name if job.on_gpu and job.runner and job.runner.gpu else "CPU"
            tests = f"{device}, image too" if tests_image(job, image) else device
            target = job.target
            lines.append(
                f"| {target.name} | {target.platform} | {runner} | {tests} | {job.ranks} |"
            )
            remarks += [f"- {target.name}: {note}" for note in job.notes]
        name = assignment.jobs[0].target.name
        remarks += [f"- {name}: {line}" for line in assignment.untested]
    return "\n".join([*lines, "", *dict.fromkeys(remarks)]) + "\n"


def describe_job(job: Job) -> str:
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


@cache
def _ci_facts() -> Mapping[str, Any]:
    facts = load("ci.yml")
    assert isinstance(facts, dict)
    return facts


@cache
def _image() -> str:
    """The image, by digest, of jobs on GitLab's own runners: the base of our own images."""
    for row in load("base_images.yml")["images"]:
        if row["use"] == "base":
            return f"{row['reference']}@{row['digest']}"
    raise AssertionError("base_images.yml has no base")
