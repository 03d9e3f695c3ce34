"""Resolution -> the texts of the files next to spec.yml, and of workflows, contracts and pages.

Rendering is pure: the same resolution and templates give the same bytes.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provision.core.types import Resolution
from provision.render.generated import MADE_BY, with_first_line, with_header
from provision.render.templates import Templates, as_command, as_comment, render_page

REPORT_MADE_BY = "Made by provision report"
OUR_TEMPLATES = Templates()

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


def render_inputs(resolution: Resolution, templates: Templates = OUR_TEMPLATES) -> dict[str, str]:
    """The inputs of a lock: environment.yml and virtual-packages.yml."""
    name, values = resolution.spec.name, input_values(resolution)
    return {
        ENVIRONMENT: _render_with_header(name, ENVIRONMENT, values, templates),
        VIRTUAL_PACKAGES: _render_with_header(name, VIRTUAL_PACKAGES, values, templates),
    }


def input_values(resolution: Resolution) -> dict[str, Any]:
    """The values of both templates."""
    return {
        "name": resolution.spec.name,
        "platforms": resolution.platforms,
        "channels": resolution.channels,
        "conda": [pin for pin in resolution.pins if pin.manager == "conda"],
        "pip": [pin for pin in resolution.pins if pin.manager == "pip"],
        "needs_torch_index": resolution.needs_local_build,
        "virtual_packages": resolution.virtual_packages,
    }


def _render_with_header(
    name: str, file: str, values: Mapping[str, Any], templates: Templates
) -> str:
    return with_header(name, templates.render(file, values), templates.origin(file))


def render_dockerfile(
    name: str, values: Mapping[str, Any], templates: Templates = OUR_TEMPLATES
) -> dict[str, str]:
    """The Dockerfile. Its values come from the image package and include the lock's hash."""
    return {DOCKERFILE: _render_with_header(name, DOCKERFILE, values, templates)}


def render_spec(name: str, content: Mapping[str, Any]) -> str:
    """The text of a spec.yml with this content."""
    return with_header(name, OUR_TEMPLATES.render(SPEC, {"name": name, "content": content}))


def render_table(values: Mapping[str, Any]) -> str:
    """The table of builds as one HTML page that needs no other file."""
    return render_page(TABLE, values)


def render_report(values: Mapping[str, Any], *, remake: Sequence[str]) -> str:
    """The page of a report, which needs no other file.

    Everything that passports say is escaped: others may have written it.
    """
    made_by = f"{REPORT_MADE_BY}; remake with: {shlex.join(remake)}"
    text = render_page(REPORT, {**values, "made_by": made_by}, escaped=True)
    # JSON can hold halves of surrogate pairs, which no file can.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def is_report_page(path: Path) -> bool:
    """Whether provision made this page."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return f"<!-- {REPORT_MADE_BY}" in file.read(200)


def render_workflow(
    format: str,
    values: Mapping[str, Any],
    *,
    made_from: str,
    remake: Sequence[str],
    templates: Templates = OUR_TEMPLATES,
) -> str:
    """The text of a CI workflow. Its header names the command that makes it again."""
    file = WORKFLOWS[format]
    origin = f"{as_comment(made_from)}{templates.origin(file)}"
    first_line = f"{MADE_BY}{origin}; remake with: {as_command(remake)}"
    return with_first_line(first_line, templates.render(file, values))


def render_contract(
    format: str,
    values: Mapping[str, Any],
    *,
    remake: Sequence[str],
    templates: Templates = OUR_TEMPLATES,
) -> str:
    """How to run an image, for one kind of engine or scheduler."""
    file = CONTRACTS[format]
    origin = templates.origin(file).replace(" and ", " from ", 1)
    made_by = f"Made by provision{origin}; remake with: {as_command(remake)}"
    return templates.render(file, {**values, "made_by": made_by})
