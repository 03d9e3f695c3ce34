"""Resolution -> the texts of the files that stand beside spec.yml, and writing them without losing anybody's edits.

Rendering is pure: the same resolution gives the same bytes. Every generated file opens with what made it and a digest of what
follows, so that a file edited by hand is known and is never overwritten unasked.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from provision.compat import TEMPLATES
from provision.errors import InvalidSpec, StaleLock
from provision.folders import write_whole
from provision.model import Resolution

if TYPE_CHECKING:
    import jinja2

State = Literal["missing", "ours", "edited"]
MADE_BY = "# Made by provision from spec.yml; remake with: provision render {name}"
REPORT_MADE_BY = "Made by provision report"
DIGEST = "# sha256 of what follows: "

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


def render_inputs(resolution: Resolution) -> dict[str, str]:
    """What a lock is made from: environment.yml and virtual-packages.yml."""
    name = resolution.spec.name
    values = {
        "name": name,
        "platforms": resolution.platforms,
        "channels": resolution.channels,
        "conda": [pin for pin in resolution.pins if pin.manager == "conda"],
        "pip": [pin for pin in resolution.pins if pin.manager == "pip"],
        "needs_torch_index": resolution.needs_local_build,
        "virtual_packages": resolution.virtual_packages,
    }
    return {file: sealed(name, _template(file).render(values)) for file in (ENVIRONMENT, VIRTUAL_PACKAGES)}


def render_dockerfile(name: str, values: Mapping[str, Any]) -> dict[str, str]:
    """The Dockerfile; its values are the image stage's, and include the lock's hash."""
    return {DOCKERFILE: sealed(name, _template(DOCKERFILE).render(values))}


def render_spec(name: str, asked: Mapping[str, Any]) -> str:
    """The text of a spec.yml that asks for this."""
    return sealed(name, _template(SPEC).render(name=name, asked=asked))


def render_table(values: Mapping[str, Any]) -> str:
    """The table of builds as one HTML page that needs nothing else."""
    return _template(TABLE).render(values)


def render_report(values: Mapping[str, Any], *, remake: Sequence[str]) -> str:
    """The page of a report, which needs nothing else. What passports say is not ours: all of it is escaped."""
    made_by = f"{REPORT_MADE_BY}; remake with: {shlex.join(remake)}"
    text = _templates().overlay(autoescape=True).get_template(f"{REPORT}.j2").render({**values, "made_by": made_by})
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # halves of surrogate pairs, which JSON can hold


def is_report(path: Path) -> bool:
    """Whether a file is a page that we made."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return f"<!-- {REPORT_MADE_BY}" in file.read(200)


def render_workflow(format: str, values: Mapping[str, Any], *, made_from: str, remake: Sequence[str]) -> str:
    """The text of a CI workflow. Its header names the command that remakes it."""
    body = _template(WORKFLOWS[format]).render(values)
    return _sealed(f"# Made by provision from {_comment(made_from)}; remake with: {_comment(shlex.join(remake))}", body)


def render_contract(format: str, values: Mapping[str, Any], *, remake: Sequence[str]) -> str:
    """An image's run contract, as one kind of engine or scheduler reads it."""
    made_by = f"Made by provision; remake with: {_comment(shlex.join(remake))}"
    return _template(CONTRACTS[format]).render({**values, "made_by": made_by})


@functools.cache
def _templates() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # the targets are YAML, shell and Dockerfile: each has its own filter
    )
    environment.filters |= {"yaml": _yaml, "json": json.dumps, "comment": _comment, "shell": shlex.quote}
    return environment


def _template(name: str) -> jinja2.Template:
    return (_github_templates() if name.startswith("github") else _templates()).get_template(f"{name}.j2")


@functools.cache
def _github_templates() -> jinja2.Environment:
    """Double braces are GitHub's own, so values stand in double brackets."""
    return _templates().overlay(variable_start_string="[[", variable_end_string="]]")


def _yaml(value: object) -> str:
    """A YAML scalar. Plain where every YAML reader agrees that it is this text, else in double quotes (JSON is YAML)."""
    text = json.dumps(value)
    if not isinstance(value, str):
        return text
    plain = value[:1].isalpha() and all(character.isalnum() or character in "=.*_+-/<>" for character in value)
    return value if plain and value.lower() not in ("yes", "no", "true", "false", "null", "on", "off", "y", "n") else text


def _comment(text: str) -> str:
    """One line; square brackets would be read as a platform selector by conda-lock."""
    return " ".join(text.split()).replace("[", "(").replace("]", ")")


def sealed(name: str, body: str) -> str:
    """A generated file's text: what made it, a digest of the rest, the rest."""
    return _sealed(MADE_BY.format(name=name), body)


def _sealed(made_by: str, body: str) -> str:
    return f"{made_by}\n{DIGEST}{_digest(body)}\n{body}"


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def state(path: Path) -> State:
    """Whether a file is absent, as we wrote it, or somebody's own (never ours, or edited since)."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n", 2)
    except FileNotFoundError:
        return "missing"
    except UnicodeDecodeError:
        return "edited"
    ours = len(lines) == 3 and lines[0].startswith("# Made by provision") and lines[1] == DIGEST + _digest(lines[2])
    return "ours" if ours else "edited"


def read(path: Path) -> str:
    """A file's text, or InvalidSpec for one that is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidSpec(f"{path} is not UTF-8 text (byte {error.start}).", advice="Save it as UTF-8.") from error


def pending(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """The files that would be written: those that are not already exactly this text."""
    return [name for name, text in texts.items() if not _same(folder / name, text)]


def edited(folder: Path, texts: Mapping[str, str]) -> list[str]:
    """The files among them that somebody has edited, and that we would have to overwrite."""
    return [name for name in pending(folder, texts) if state(folder / name) == "edited"]


def write(folder: Path, texts: Mapping[str, str], *, force: bool = False) -> list[str]:
    """Write what differs and return the names. Raises StaleLock, having written nothing, if that would undo a hand edit."""
    changed = edited(folder, texts)
    if changed and not force:
        raise StaleLock(
            f"{', '.join(str(folder / name) for name in changed)} was edited by hand and differs from what spec.yml renders.",
            advice=f"`provision lock {folder.name} --relock` locks it as edited; `provision render {folder.name} --force` undoes the edit.",
        )
    written = pending(folder, texts)
    for name in written:
        write_whole(folder / name, texts[name])
    return written


def _same(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode()
    except FileNotFoundError:
        return False
