"""The templates of generated files: a lab's own where its folder has one, else ours. All are strict about undefined values.

A lab's templates lie in `templates/` of the working folder, which may be anybody's checkout: they run in Jinja's sandbox.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from provision.catalog import TEMPLATES
from provision.core.errors import InvalidSpec

if TYPE_CHECKING:
    import jinja2

FOLDER = "templates"
# In a lab's template, ours is called so: {% include "provision/Dockerfile.j2" %}
OURS = "provision"
# Of what a lab may change: not spec.yml, which is a request and must read back as it was asked, and not the pages of evidence.
CHANGEABLE = (
    "environment.yml",
    "virtual-packages.yml",
    "Dockerfile",
    "contract-",
    "github-workflow.yml",
    "gitlab-ci.yml",
)


class Templates:
    """The templates by the names of the files that they make.

    folder: of a lab's own; none: ours alone. tell: is called once for each of a lab's that is used, with a sentence.
    """

    def __init__(
        self, folder: Path | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        self._folder, self._tell = folder, tell
        self._told: set[str] = set()

    def lab_file(self, name: str) -> Path | None:
        """The lab's own template of a file, if there is one."""
        path = self._folder / f"{name}.j2" if self._folder and name.startswith(CHANGEABLE) else None
        return path if path and os.path.lexists(path) else None

    def origin(self, name: str) -> str:
        """What a header adds of where its text is from: nothing where the template is ours."""
        return f" and {FOLDER}/{name}.j2" if self.lab_file(name) else ""

    def render(self, name: str, values: Mapping[str, Any]) -> str:
        """The text of a file. InvalidSpec, with file and line, for a lab's template that cannot be rendered."""
        path = self.lab_file(name)
        if path is None:
            return _bracketed(_ours(), name).get_template(f"{name}.j2").render(values)
        if self._tell and name not in self._told:
            self._told.add(name)
            self._tell(f"{name} is rendered from {path}")
        return _of_lab(path, name, values)


def page(name: str, values: Mapping[str, Any], *, escaped: bool = False) -> str:
    """A page by our own template, which no lab changes: it is evidence."""
    return _ours().overlay(autoescape=escaped).get_template(f"{name}.j2").render(values)


def _of_lab(path: Path, name: str, values: Mapping[str, Any]) -> str:
    """Whatever is wrong with a lab's template is the lab's to mend, so every kind of error is named with its place."""
    import jinja2

    mistakes = (
        jinja2.TemplateError,
        ArithmeticError,
        AttributeError,
        LookupError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    )
    try:
        return _bracketed(_lab(path.parent), name).get_template(path.name).render(values)
    except mistakes as error:
        file, line = _place(error, path)
        raise InvalidSpec(
            f"{file}{f', line {line}' if line else ''}: {_said(error)}.",
            advice=_advice(name, values),
        ) from error


def _said(error: Exception) -> str:
    import jinja2

    missing = isinstance(error, jinja2.TemplateNotFound)
    return (
        f"there is no template {error}"
        if missing
        else (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
    )


def _advice(name: str, values: Mapping[str, Any]) -> str:
    return f"Mend it, or remove it to use provision's own. A template of {name} is given: {', '.join(sorted(values))}."


def _place(error: Exception, path: Path) -> tuple[str, int | None]:
    """The lab's file, and the line in it, that an error is about. Jinja leaves templates' own lines in the traceback."""
    import jinja2

    if isinstance(error, jinja2.TemplateSyntaxError):
        return error.filename or str(path), error.lineno
    places = [
        (file, line)
        for file, line in _lines(error.__traceback__)
        if Path(file).parent.is_relative_to(path.parent)
    ]
    return places[-1] if places else (str(path), None)


def _lines(trace: TracebackType | None) -> list[tuple[str, int]]:
    found = []
    while trace is not None:
        found.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return found


@functools.cache
def _ours() -> jinja2.Environment:
    import jinja2

    return _strict(jinja2.Environment, jinja2.FileSystemLoader(TEMPLATES))


@functools.cache
def _lab(folder: Path) -> jinja2.Environment:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    ours = jinja2.PrefixLoader({OURS: jinja2.FileSystemLoader(TEMPLATES)})
    return _strict(
        ImmutableSandboxedEnvironment, jinja2.ChoiceLoader([jinja2.FileSystemLoader(folder), ours])
    )


def _strict(kind: type[jinja2.Environment], loader: jinja2.BaseLoader) -> jinja2.Environment:
    import jinja2

    environment = kind(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # the targets are YAML, shell and Dockerfile: each has its own filter
    )
    environment.filters |= {
        "yaml": as_yaml,
        "json": json.dumps,
        "comment": as_comment,
        "shell": shlex.quote,
    }
    return environment


def _bracketed(environment: jinja2.Environment, name: str) -> jinja2.Environment:
    """In a workflow of GitHub's, double braces are GitHub's own, so values stand in double brackets."""
    if not name.startswith("github"):
        return environment
    return environment.overlay(variable_start_string="[[", variable_end_string="]]")


def as_yaml(value: object) -> str:
    """A YAML scalar. Plain where every YAML reader agrees that it is this text, else in double quotes (JSON is YAML)."""
    text = json.dumps(value)
    if not isinstance(value, str):
        return text
    plain = value[:1].isalpha() and all(
        character.isalnum() or character in "=.*_+-/<>" for character in value
    )
    return (
        value
        if plain
        and value.lower() not in ("yes", "no", "true", "false", "null", "on", "off", "y", "n")
        else text
    )


def as_command(words: Sequence[str]) -> str:
    """One line that bash reads as exactly these words, whatever is in them."""
    return " ".join(shlex.quote(word) if word.isprintable() else _escaped(word) for word in words)


def _escaped(word: str) -> str:
    """bash's $'...'."""
    plain = (character.isprintable() and character not in "\\'" for character in word)
    told = (
        c if keep else "".join(f"\\x{byte:02x}" for byte in os.fsencode(c))
        for c, keep in zip(word, plain, strict=True)
    )
    return f"$'{''.join(told)}'"


def as_comment(text: str) -> str:
    """One line; square brackets would be read as a platform selector by conda-lock."""
    return " ".join(text.split()).replace("[", "(").replace("]", ")")
