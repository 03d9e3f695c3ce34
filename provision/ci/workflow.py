"""The values of CI templates, and the jobs as their first job hands them to the others.

Every text from outside is checked here or where it is read: a workflow must never contain an
expression that somebody else wrote.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from provision.catalog.data_files import load
from provision.ci.assignment import Job
from provision.ci.runners import ADVICE, FILE, Runner, WorkflowSettings
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.platforms import PLATFORM, Platform

# GitHub: "A job matrix can generate a maximum of 256 jobs per workflow run" (its documentation of
# workflow syntax).
MATRIX_MAX = 256
# In the checkout: GitHub's cache action needs a path there.
CACHE = ".provision/cache"
DATA = ".provision/data"
SAFE_PATH = r"[A-Za-z0-9_][A-Za-z0-9._/-]*"


@frozen
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
        for path in (self.envs, self.runners):
            if not re.fullmatch(SAFE_PATH, path) or ".." in path.split("/"):
                raise InvalidSpec(
                    f"The workflow's first job reads the environments and the runners, so `{path}` must be "
                    "in the repository, and this command must run in its root."
                )


def template_values(settings: WorkflowSettings, paths: WorkflowPaths) -> dict[str, object]:
    """The values of a workflow's template: everything but the jobs, which its first job computes.

    Raises InvalidSpec for paths that no workflow can have, and without `install`.
    """
    paths.check()
    if not settings.install:
        raise InvalidSpec(
            "The file of runners does not say where runners get provision.",
            advice=f"Write `install:` under `workflow:`. {ADVICE}",
        )
    triggers = [paths.runners, f"{paths.envs}/**"]
    if paths.workflow and re.fullmatch(r"[A-Za-z0-9._/-]+", paths.workflow):
        triggers.append(paths.workflow)
    return {
        "settings": settings,
        "envs": paths.envs,
        "paths": triggers,
        "jobs_command": shlex.join(paths.jobs_command),
        "actions": _ci_facts()["actions"],
        "label": _hosted_label(PLATFORM),
        "cache": CACHE,
        "data": DATA,
    }


def check_jobs(jobs: Sequence[Job]) -> None:
    """Raise InvalidSpec for more jobs than GitHub runs."""
    count = sum(job.runner is not None for job in jobs)
    most = max(count, len(jobs) - count)
    if most > MATRIX_MAX:
        raise InvalidSpec(
            f"GitHub runs at most {MATRIX_MAX} jobs of one matrix, and this is {most}: ask for fewer."
        )


def job_matrices(jobs: Sequence[Job], settings: WorkflowSettings) -> dict[str, str]:
    """The two matrices of the workflow, as JSON: jobs on the lab's own machines, and on
    GitHub's. Empty text if there are no such jobs, because GitHub refuses an empty matrix.
    """
    matrices = {}
    for name, is_self_hosted in (("own", True), ("hosted", False)):
        entries = [
            _entry(job, settings) for job in jobs if (job.runner is not None) is is_self_hosted
        ]
        matrices[name] = json.dumps({"include": entries}) if entries else ""
    return matrices


def _entry(job: Job, settings: WorkflowSettings) -> dict[str, object]:
    runner = job.runner
    if runner is None:
        label = _hosted_label(job.target.platform)
        runner = Runner(name=label, labels=(label,))
    return {
        "environment": job.target.name,
        "platform": job.target.platform,
        "runner": runner.name,
        "labels": runner.labels,
        "timeout": runner.timeout_min,
        "cache": runner.cache or "",
        "ranks": job.ranks,
        "device": "require_gpu=true" if job.on_gpu else "backend=gloo",
        # A rehearsal on a CPU measures no GPU.
        "strict": "strict=true" if settings.strict and job.on_gpu else "",
        "image": "--image" if tests_image(job, settings.image) else "--no-image",
    }


def tests_image(job: Job, image: bool) -> bool:
    """Whether a job also builds and tests the environment's image."""
    return image and job.on_gpu and job.runner is not None and job.runner.engine


def summary(jobs: Sequence[Job], *, image: bool) -> str:
    """What runs where, and why not elsewhere, as Markdown."""
    lines = ["| environment | platform | runner | tests | ranks |", "|---|---|---|---|---|"]
    remarks = []
    for job in jobs:
        runner = job.runner.name if job.runner else "of the service"
        device = job.runner.gpu.name if job.on_gpu and job.runner and job.runner.gpu else "CPU"
        tests = f"{device}, image too" if tests_image(job, image) else device
        target = job.target
        lines.append(f"| {target.name} | {target.platform} | {runner} | {tests} | {job.ranks} |")
        remarks += [f"- {target.name}: {note}" for note in job.notes]
    return "\n".join([*lines, "", *dict.fromkeys(remarks)]) + "\n"


def _hosted_label(platform: Platform) -> str:
    """The label of GitHub's own CPU runner."""
    return str(_ci_facts()["hosted"]["github"][platform]["label"])


@cache
def _ci_facts() -> Mapping[str, Any]:
    facts = load("ci.yml")
    assert isinstance(facts, dict)
    return facts
