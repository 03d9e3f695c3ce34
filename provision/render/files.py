"""The texts of generated files: those next to spec.yml, workflows, contracts and pages.

Rendering is pure: the same resolution and templates give the same bytes. Each generated file
opens with what made it and a digest of the rest, so that writing it again loses nobody's edits.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from provision.core.atomic import atomic_write
from provision.core.credentials import without_credentials
from provision.core.errors import InvalidSpec, StaleLock
from provision.core.paths import ENVIRONMENT, SPEC, VIRTUAL_PACKAGES
from provision.core.types import Resolution
from provision.core.yaml_text import YamlError, read_source_text
from provision.render.templates import Templates, Values, as_command, as_comment, render_page

FileState = Literal["missing", "ours", "edited"]
MADE_BY = "# Made by provision from "
DIGEST = "# sha256 of what follows: "
SYNTAX = "# syntax="
REPORT_MADE_BY = "Made by provision report"
# Digests and commits: 12 digits suffice to find them.
_HASH = re.compile(r"\b([0-9a-f]{12})([0-9a-f]{20,})\b")
OUR_TEMPLATES = Templates()

DOCKERFILE = "Dockerfile"
REPORT = "report.html"
NODES_REPORT, LAB_REPORT = "nodes.html", "lab.html"
HEALTH_CHECK = "slurm-health-check.sh"
MOUNT_SCRIPT, MOUNT_UNIT = "mount-stores.sh", "provision-stores.service"
CONTRACTS = {
    "docker": "contract-docker.sh",
    "compose": "contract-compose.yaml",
    "sbatch": "contract-sbatch.sbatch",
    "slurm-pyxis": "contract-slurm-pyxis.sbatch",
    "apptainer": "contract-apptainer.sbatch",
    "kubernetes": "contract-kubernetes.yaml",
    "jobset": "contract-jobset.yaml",
    "devcontainer": "contract-devcontainer.json",
    "ssh": "contract-ssh.sh",
    "sif": "contract-sif.sh",
    "sqsh": "contract-sqsh.sh",
}
WORKFLOW = "github-workflow.yml"


def render_inputs(resolution: Resolution) -> dict[str, str]:
    """The inputs of a lock: environment.yml and virtual-packages.yml."""
    values = {
        "name": resolution.spec.name,
        "platforms": resolution.platforms,
        "channels": resolution.channels,
        "conda": [pin for pin in resolution.pins if pin.manager == "conda"],
        "pip": [pin for pin in resolution.pins if pin.manager == "pip"],
        "needs_torch_index": resolution.needs_local_build,
        "virtual_packages": resolution.virtual_packages,
    }
    return {
        file: with_header(resolution.spec.name, OUR_TEMPLATES.render(file, values))
        for file in (ENVIRONMENT, VIRTUAL_PACKAGES)
    }


def render_dockerfile(
    name: str, values: Values, templates: Templates = OUR_TEMPLATES
) -> dict[str, str]:
    """The Dockerfile. Its values come from the image package and include the lock's hash."""
    text = templates.render(DOCKERFILE, values)
    return {DOCKERFILE: with_header(name, text, templates.origin(DOCKERFILE))}


def render_spec(name: str, content: Values) -> str:
    """The text of a spec.yml with this content."""
    body = OUR_TEMPLATES.render(SPEC, {"name": name, "content": content})
    return with_first_line("# Made by provision", body)


def render_report(page: str, values: Values, *, remake: Sequence[str]) -> str:
    """A page of evidence, self-contained: of passports, of nodes that were compared, or of a lab.

    All content of documents is escaped, since they may come from anybody.
    """
    made_by = f"{REPORT_MADE_BY}; remake with: {shlex.join(remake)}"
    content = {**values, "made_by": made_by, "split_hashes": _HASH.split}
    text = render_page(page, content, escaped=True)
    # JSON can hold halves of surrogate pairs, which no file can.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def is_report_page(path: Path) -> bool:
    """Whether provision made this page."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return f"<!-- {REPORT_MADE_BY}" in file.read(200)


def render_workflow(
    values: Values,
    *,
    made_from: str,
    remake: Sequence[str],
    templates: Templates = OUR_TEMPLATES,
) -> str:
    """The text of a CI workflow. Its header names the command that makes it again."""
    origin = f"{as_comment(made_from)}{templates.origin(WORKFLOW)}"
    first_line = f"{MADE_BY}{origin}; remake with: {as_command(remake)}"
    return with_first_line(first_line, templates.render(WORKFLOW, values))


def render_contract(
    job_format: str,
    values: Values,
    *,
    remake: Sequence[str],
    templates: Templates = OUR_TEMPLATES,
) -> str:
    """How to run a job, for one kind of engine or scheduler."""
    file = CONTRACTS[job_format]
    origin = templates.origin(file).replace(" and ", " from ", 1)
    command = without_credentials(as_command(remake))
    made_by = f"Made by provision{origin}; remake with: {command}"
    return templates.render(file, {**values, "made_by": made_by})


def render_node_script(file: str, values: Values, *, remake: Sequence[str]) -> str:
    """A file for a node: HEALTH_CHECK, MOUNT_SCRIPT or MOUNT_UNIT."""
    made_by = f"Made by provision; remake with: {as_command(remake)}"
    return OUR_TEMPLATES.render(file, {**values, "made_by": made_by})


def with_header(name: str, body: str, origin: str = "") -> str:
    """The text of an environment's file: what made it, a digest of the rest, the rest.

    origin: names the lab's template, if one was used.
    """
    return with_first_line(f"{MADE_BY}spec.yml{origin}; remake with: provision render {name}", body)


def with_first_line(first_line: str, body: str) -> str:
    """A text with a first line that says what made it, and a digest of the rest.

    BuildKit reads a `# syntax=` line only if it is the first one, so it stays there.
    """
    directive, body = _split_directive(body)
    return f"{directive}{first_line}\n{DIGEST}{_digest(directive + body)}\n{body}"


def _split_directive(text: str) -> tuple[str, str]:
    """A text's `# syntax=` line, which is empty if it has none, and the rest."""
    size = text.find("\n") + 1 if text.startswith(SYNTAX) else 0
    return text[:size], text[size:]


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def file_state(path: Path) -> FileState:
    """Whether a file is missing, unchanged since we wrote it, or edited.

    A file that we did not write counts as edited.
    """
    try:
        text = read_source_text(path)
    except FileNotFoundError:
        return "missing"
    except (UnicodeDecodeError, YamlError):
        return "edited"
    directive, rest = _split_directive(text)
    lines = rest.split("\n", 2)
    if len(lines) < 3 or not lines[0].startswith("# Made by provision"):
        return "edited"
    return "ours" if lines[1] == DIGEST + _digest(directive + lines[2]) else "edited"


def read_text(path: Path) -> str:
    """A file's text. Raises InvalidSpec if it is not UTF-8, or too large."""
    try:
        return read_source_text(path)
    except YamlError as error:
        raise InvalidSpec(f"{path} is not a file of provision: {error.problem}.") from error
    except UnicodeDecodeError as error:
        raise InvalidSpec(
            f"{path} is not UTF-8 text (byte {error.start}).", advice="Save it as UTF-8."
        ) from error


def changed_files(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """The files that `write_files` would write: those that do not hold exactly this text."""
    names = []
    for name, text in texts.items():
        try:
            content = (folder / name).read_bytes()
        except FileNotFoundError:
            content = None
        if content != text.encode():
            names.append(name)
    return names


def edited_files(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """The files that `write_files` would overwrite although somebody edited them."""
    return [name for name in changed_files(folder, texts) if file_state(folder / name) == "edited"]


def require_unedited(folder: Path, texts: Mapping[str, str]) -> None:
    """Raise StaleLock if writing these files would undo somebody's edits."""
    edited = edited_files(folder, texts)
    if edited:
        names = ", ".join(str(folder / name) for name in edited)
        raise StaleLock(
            f"{names} was edited by hand and differs from what spec.yml renders.",
            advice=f"Write the change into {folder / SPEC}; `provision render {folder.name} --force` "
            "undoes the edit.",
        )


def write_files(folder: Path, texts: Mapping[str, str], *, force: bool = False) -> list[str]:
    """Write the files that differ; returns their names.

    Without `force`, raises StaleLock and writes nothing if that would undo somebody's edits.
    """
    if not force:
        require_unedited(folder, texts)
    changed = changed_files(folder, texts)
    for name in changed:
        atomic_write(folder / name, texts[name])
    return changed
