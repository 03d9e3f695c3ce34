"""The values of CI templates, and the jobs as their first job hands them to the others.

Every text from outside is checked here or where it is read: a workflow must never contain an
expression that somebody else wrote.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from provision.catalog.data_files import load
from provision.ci.assignment import Assignment, Job
from provision.ci.runners import TIMEOUT_MIN
from provision.core.errors import InvalidSpec
from provision.core.platforms import PLATFORM, Platform

WorkflowFormat = Literal["github", "gitlab"]
FORMATS: tuple[WorkflowFormat, ...] = ("github", "gitlab")
# GitHub: "A job matrix can generate a maximum of 256 jobs per workflow run" (its documentation of
# workflow syntax).
MATRIX_MAX = 256
# In the checkout: GitHub's cache action and GitLab both need a path there.
CACHE = ".provision/cache"
DATA = ".provision/data"
EVIDENCE = ".provision/evidence"  # GitLab's; on GitHub it is in the job's temporary folder
RETENTION_DAYS = 30  # GitHub's own default is 90, where the repository allows it
# Weekly, off the full hour, when many schedules start late.
SCHEDULE = "17 4 * * 1"

SAFE_PATH = r"[A-Za-z0-9_][A-Za-z0-9._/-]*"
CRON = r"[0-9A-Za-z*,/-]+( [0-9A-Za-z*,/-]+){4}"
# pip refuses a wheel that was renamed: its file name says what it fits.
WHEEL = r"[A-Za-z0-9_.]+(-[A-Za-z0-9_.+]+){4,5}\.whl"
# What pip may install on a runner. Not a name: whoever owns that name on the runner's index could
# run code there. A checkout, a wheel in the repository, a commit, or a wheel with its hash.
INSTALL = (
    r"\.",
    rf"(\./)?([A-Za-z0-9_][A-Za-z0-9._+-]*/)*{WHEEL}",
    r"git\+(https|ssh)://[A-Za-z0-9._~:/@%+-]+@[0-9a-f]{40}",
    rf"https?://[A-Za-z0-9._~:/@%+-]+/{WHEEL}#sha256=[0-9a-f]{{64}}",
)


@dataclass(frozen=True, kw_only=True)
class WorkflowSettings:
    """The settings of a workflow besides its jobs.

    jobs_command: what the first job runs to learn the other jobs.
    """

    install: str  # what pip installs; one of the forms of INSTALL
    jobs_command: tuple[str, ...]
    envs: str = "envs"  # relative to the repository's root
    runners: str = "runners.yml"  # the same
    schedule: str = SCHEDULE
    retention_days: int = RETENTION_DAYS
    workflow: str | None = None  # the workflow file's path, if it is in the repository
    image: bool = False  # images too, where there is an engine
    strict: bool = True  # warnings about speed fail jobs on GPUs

    def mistakes(self) -> list[str]:
        """All invalid settings, in sentences."""
        mistakes = []
        if not any(re.fullmatch(form, self.install) for form in INSTALL):
            problem = f"`{self.install}` is none of these." if self.install else "It is missing."
            mistakes.append(
                "--install must say where runners get provision: `.` (the checkout is provision "
                "itself), a wheel in the repository (tools/provision_gpu-0.2.0-py3-none-any.whl), "
                "git+https://HOST/REPO@COMMIT or https://HOST/NAME.whl#sha256=HASH. "
                f"{problem} A wheel keeps the name that its build gave it: pip refuses another."
            )
        if not _is_in_repository(self.envs):
            mistakes.append(
                "The folder of environments must be in the repository, and this command must run "
                f"in its root; `{self.envs}` is not."
            )
        if not _is_in_repository(self.runners):
            mistakes.append(
                "The workflow's first job reads --runners, so that file must be in the repository; "
                f"`{self.runners}` is not."
            )
        if not re.fullmatch(CRON, self.schedule):
            mistakes.append(
                f"--schedule must be five fields of cron like `{SCHEDULE}`, not `{self.schedule}`."
            )
        for argument in self.jobs_command:
            if "${{" in argument or not argument.isprintable():
                mistakes.append(f"`{argument}` cannot be part of a workflow.")
        return mistakes


def _is_in_repository(path: str) -> bool:
    return re.fullmatch(SAFE_PATH, path) is not None and ".." not in path.split("/")


def template_values(format: WorkflowFormat, settings: WorkflowSettings) -> dict[str, Any]:
    """The values of a workflow's template: everything but the jobs, which its first job computes.

    Raises InvalidSpec for settings that no workflow can have.
    """
    mistakes = settings.mistakes()
    if mistakes:
        raise InvalidSpec("\n".join(mistakes))
    paths = [settings.runners, f"{settings.envs}/**"]
    if settings.workflow and re.fullmatch(r"[A-Za-z0-9._/-]+", settings.workflow):
        paths.append(settings.workflow)
    return {
        "settings": settings,
        "paths": paths,
        "jobs_command": shlex.join(settings.jobs_command),
        "actions": _ci_facts()["actions"],
        "label": _hosted_label(format, PLATFORM),
        "image": _image(),
        "cache": CACHE,
        "data": DATA,
    }


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
        for is_own in (True, False):
            count = sum((job.runner is not None) is is_own for job in jobs)
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
    for name, is_own in (("own", True), ("hosted", False)):
        entries = []
        for job in jobs:
            if (job.runner is not None) is is_own:
                entries.append(_github_entry(job, settings))
        matrices[name] = json.dumps({"include": entries}) if entries else ""
    return matrices


def _github_entry(job: Job, settings: WorkflowSettings) -> dict[str, Any]:
    place = _place("github", job)
    has_image = tests_image(job, settings.image)
    return {
        "environment": job.target.name,
        "platform": job.target.platform,
        "runner": place["runner"],
        "labels": place["labels"],
        "timeout": place["timeout"],
        "cache": place["cache"] or "",
        "ranks": job.ranks,
        "device": _device_setting(job),
        "strict": "strict=true" if is_strict(job, settings) else "",
        "image": "--image" if has_image else "--no-image",
        "place": "both" if has_image else "prefix",
    }


def gitlab_values(jobs: Sequence[Job], settings: WorkflowSettings) -> dict[str, Any]:
    """The values of the template of GitLab's child pipeline, which has one job for each of ours."""
    entries = []
    for job in jobs:
        entries.append(
            {
                **_place("gitlab", job),
                "own": job.runner is not None,
                "environment": job.target.name,
                "platform": job.target.platform,
                "locked": job.target.locked,
                "title": f"{job.target.name} on {_place('gitlab', job)['runner']}",
                "commands": commands(job, settings),
                "removes_image": tests_image(job, settings.image),
                "about": about(job),
                "notes": job.notes,
            }
        )
    return {
        "settings": settings,
        "default_image": _image(),
        "cache": CACHE,
        "data": DATA,
        "evidence": EVIDENCE,
        "jobs": entries,
    }


def _place(format: WorkflowFormat, job: Job) -> dict[str, Any]:
    """Where a job runs."""
    runner = job.runner
    if runner is None:
        label = _hosted_label(format, job.target.platform)
        return {
            "runner": label,
            "labels": (label,),
            "image": None,
            "cache": None,
            "timeout": TIMEOUT_MIN,
        }
    return {
        "runner": runner.name,
        "labels": runner.labels,
        "image": runner.image,
        "cache": runner.cache,
        "timeout": runner.timeout_min,
    }


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
    smoke += [f"--out={EVIDENCE}", f"--junit={EVIDENCE}/junit.xml"]
    image_option = "--image" if has_image else "--no-image"
    verbs = [
        ["lock", job.target.name],
        ["build", job.target.name, image_option, "--no-smoke", "--no-kernel"],
        smoke,
    ]
    return [shlex.join(["provision", *verb]) for verb in verbs]


def summary(assignments: Sequence[Assignment], *, image: bool) -> str:
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


def about(job: Job) -> str:
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
