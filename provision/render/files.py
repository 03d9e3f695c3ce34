"""Resolution -> the texts of the files that stand beside spec.yml, and of what is rendered for others: workflows, contracts, pages.

Rendering is pure: the same resolution and templates give the same bytes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.core.types import Resolution
from provision.render.generated import MADE_BY, sealed, sealed_by
from provision.render.templates import Templates, as_command, as_comment, page

REPORT_MADE_BY = "Made by provision report"
STANDARD = Templates()  # provision's own

ENVIRONMENT = "environment.yml"
VIRTUAL_PACKAGES = "virtual-packages.yml"
DOCKERFILE = "Dockerfile"
SPEC = "spec.yml"
TABLE = "matrix.html"
REPORT = "report.html"
CONTRACTS = {
    "docker": "contract-docker.sh",
    "compose": "contract-compose.yaml",
    "slurm-pyxis": "contract-slurm-pyxis.sbatch",
    "kubernetes": "contract-kubernetes.yaml",
    "devcontainer": "contract-devcontainer.json",
}
WORKFLOWS = {"github": "github-workflow.yml", "gitlab": "gitlab-ci.yml"}


def render_inputs(resolution: Resolution, templates: Templates = STANDARD) -> dict[str, str]:
    """What a lock is made from: environment.yml and virtual-packages.yml."""
    values = input_values(resolution)
    return {
        file: _sealed(resolution.spec.name, file, values, templates)
        for file in (ENVIRONMENT, VIRTUAL_PACKAGES)
    }


def input_values(resolution: Resolution) -> dict[str, Any]:
    """What the templates of both are given."""
    return {
        "name": resolution.spec.name,
        "platforms": resolution.platforms,
        "channels": resolution.channels,
        "conda": [pin for pin in resolution.pins if pin.manager == "conda"],
        "pip": [pin for pin in resolution.pins if pin.manager == "pip"],
        "needs_torch_index": resolution.needs_local_build,
        "virtual_packages": resolution.virtual_packages,
    }


def _sealed(name: str, file: str, values: Mapping[str, Any], templates: Templates) -> str:
    return sealed(name, templates.render(file, values), templates.origin(file))


def render_dockerfile(
    name: str, values: Mapping[str, Any], templates: Templates = STANDARD
) -> dict[str, str]:
    """The Dockerfile; its values are the image stage's, and include the lock's hash."""
    return {DOCKERFILE: _sealed(name, DOCKERFILE, values, templates)}


def render_spec(name: str, asked: Mapping[str, Any]) -> str:
    """The text of a spec.yml that asks for this."""
    return sealed(name, STANDARD.render(SPEC, {"name": name, "asked": asked}))


def render_table(values: Mapping[str, Any]) -> str:
    """The table of builds as one HTML page that needs nothing else."""
    return page(TABLE, values)


def render_report(values: Mapping[str, Any], *, remake: Sequence[str]) -> str:
    """The page of a report, which needs nothing else. What passports say is not ours: all of it is escaped."""
    made_by = f"{REPORT_MADE_BY}; remake with: {shlex.join(remake)}"
    text = page(REPORT, {**values, "made_by": made_by}, escaped=True)
    return text.encode("utf-8", "backslashreplace").decode(
        "utf-8"
    )  # halves of surrogate pairs, which JSON can hold


def is_report(path: Path) -> bool:
    """Whether a file is a page that we made."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return f"<!-- {REPORT_MADE_BY}" in file.read(200)


def render_workflow(
    format: str,
    values: Mapping[str, Any],
    *,
    made_from: str,
    remake: Sequence[str],
    templates: Templates = STANDARD,
) -> str:
    """The text of a CI workflow. Its header names the command that remakes it."""
    file = WORKFLOWS[format]
    made_by = f"{MADE_BY}{as_comment(made_from)}{templates.origin(file)}; remake with: {as_command(remake)}"
    return sealed_by(made_by, templates.render(file, values))


def render_contract(
    format: str,
    values: Mapping[str, Any],
    *,
    remake: Sequence[str],
    templates: Templates = STANDARD,
) -> str:
    """An image's run contract, as one kind of engine or scheduler reads it."""
    file = CONTRACTS[format]
    origin = templates.origin(file).replace(" and ", " from ", 1)
    made_by = f"Made by provision{origin}; remake with: {as_command(remake)}"
    return templates.render(file, {**values, "made_by": made_by})
