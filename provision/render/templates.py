"""The templates of generated files: a lab's own where it has one, else ours.

An undefined value is an error in all of them. A lab's templates are in `templates/` of the
working folder. That may be anybody's checkout, so they run in Jinja's sandbox.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.catalog import TEMPLATES
from provision.core.credentials import without_credentials
from provision.core.errors import InvalidSpec
from provision.core.paths import ENVIRONMENT, SPEC, VIRTUAL_PACKAGES
from provision.core.remembered import remembered

if TYPE_CHECKING:
    import jinja2

FOLDER = "templates"
# The prefix of our templates' names in a lab's: {% include "provision/Dockerfile.j2" %}
OUR_PREFIX = "provision"
Values = Mapping[str, object]  # of a template, by their names in it
# The files whose templates a lab may replace: not what a request is read from, and not the pages of
# evidence.
REPLACEABLE = ("Dockerfile", "contract-", "github-workflow.yml")
# What every lock renders. These include no others, and their values have no addresses in memory.
REMEMBERED = ("Dockerfile", SPEC, ENVIRONMENT, VIRTUAL_PACKAGES)
# Plain scalars that some YAML readers read as booleans or null.
YAML_KEYWORDS = ("yes", "no", "true", "false", "null", "on", "off", "y", "n")


class Templates:
    """The templates, by the names of the files that they make.

    folder: the lab's own templates. notify: called with a sentence for each lab template in use.
    """

    def __init__(
        self, folder: Path | None = None, notify: Callable[[str], None] | None = None
    ) -> None:
        self._folder = folder
        self._notify = notify
        self._notified: set[str] = set()

    def lab_file(self, name: str) -> Path | None:
        """The lab's own template of a file, if it has one.

        A copy of ours does not count: in a clone of provision, `templates/` holds our own. Raises
        InvalidSpec for a link that leads out of the folder.
        """
        if self._folder is None or not name.startswith(REPLACEABLE):
            return None
        path = self._folder / f"{name}.j2"
        if not os.path.lexists(path):
            return None
        require_inside(path, self._folder)
        try:
            is_copy = path.read_bytes() == (TEMPLATES / f"{name}.j2").read_bytes()
        except OSError:
            is_copy = False  # rendering it reports the error
        return None if is_copy else path

    def require_ours(self, *names: str) -> None:
        """Raise InvalidSpec for a lab's template of what only spec.yml decides."""
        for name in names:
            path = (self._folder or TEMPLATES) / f"{name}.j2"
            if path.is_file() and path.read_bytes() != (TEMPLATES / path.name).read_bytes():
                raise InvalidSpec(
                    f"{path} has no effect: spec.yml alone decides what is locked.",
                    advice="State its packages in spec.yml (`conda:`, `pip:`), and remove it.",
                )

    def origin(self, name: str) -> str:
        """What a file's header says about the lab's template; empty if the template is ours."""
        return f" and {FOLDER}/{name}.j2" if self.lab_file(name) else ""

    def render(self, name: str, values: Values) -> str:
        """The text of a file.

        Raises InvalidSpec, with file and line, for a lab's template that cannot be rendered, and
        for a text with a credential.
        """
        path = self.lab_file(name)
        if path is not None and self._notify and name not in self._notified:
            self._notified.add(name)
            self._notify(f"{name} is rendered from {path}")
        if path is not None or name not in REMEMBERED:
            return _rendered(path, name, values)
        key = f"{(TEMPLATES / f'{name}.j2').read_text(encoding='utf-8')}{values}".encode()
        return str(remembered(name, values.get("name"), key, lambda: _rendered(None, name, values)))


# path: of a lab's template.
def _rendered(path: Path | None, name: str, values: Values) -> str:
    if path is None:
        environment = _with_github_brackets(_our_environment(), name)
        text = environment.get_template(f"{name}.j2").render(values)
    else:
        text = _render_lab_file(path, name, values)
    if without_credentials(text) != text:
        raise InvalidSpec(
            f"{name} would contain an address with a password or token.",
            advice="Take it out of the command or template. Programs read it from a file of "
            "yours, or from a variable that is set where they run.",
        )
    return text


def require_inside(path: Path, folder: Path) -> None:
    """Raise InvalidSpec for a link that leads out of a lab's folder of templates."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InvalidSpec(
            f"{path} is a link to {path.resolve()}, outside of the templates folder.",
            advice="Put the file itself there: generated files must not depend on what is "
            "elsewhere on this machine.",
        )


def render_page(name: str, values: Values, *, escaped: bool = False) -> str:
    """A page of evidence, by our own template, which a lab cannot replace."""
    environment = _our_environment().overlay(autoescape=escaped)
    return without_credentials(environment.get_template(f"{name}.j2").render(values))


def _render_lab_file(path: Path, name: str, values: Values) -> str:
    import jinja2

    environment = _with_github_brackets(_lab_environment(path.parent), name)
    advice = (
        "Correct it, or remove it to use provision's own. "
        f"The values of a template of {name} are: {', '.join(sorted(values))}."
    )
    try:
        return environment.get_template(path.name).render(values)
    except InvalidSpec:
        raise
    except Exception as error:  # a template can raise anything that Python's expressions can
        location = _failing_line(error, path)
        if not location and not isinstance(error, (OSError, ValueError, jinja2.TemplateError)):
            raise  # no line of theirs was running: it is our bug
        problem = f"{location or path}: {_describe(error)}."
        raise InvalidSpec(problem, advice=advice) from error


def _describe(error: Exception) -> str:
    import jinja2

    if isinstance(error, jinja2.TemplateNotFound):
        return f"there is no template {error}"
    text = str(error) or type(error).__name__
    return text.splitlines()[0].rstrip(".")


def _failing_line(error: Exception, path: Path) -> str:
    """The file and line of a lab's template that an error came from; empty if there is none.

    Jinja leaves the lines of templates in the traceback.
    """
    import traceback

    import jinja2

    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"{error.filename or path}, line {error.lineno}"
    location = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if Path(frame.filename).parent.is_relative_to(path.parent):
            location = f"{frame.filename}, line {frame.lineno}"
    return location


@cache
def _our_environment() -> jinja2.Environment:
    import jinja2

    # Ours include one another by the names that they have for a lab's, so that a copy still does.
    our_files = jinja2.FileSystemLoader(TEMPLATES)
    loader = jinja2.ChoiceLoader([our_files, jinja2.PrefixLoader({OUR_PREFIX: our_files})])
    return _strict_environment(jinja2.Environment, loader)


@cache
def _lab_environment(folder: Path) -> jinja2.Environment:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class LabLoader(jinja2.FileSystemLoader):
        """Includes are as the template itself: no link may lead out of the folder."""

        def get_source(self, environment: jinja2.Environment, template: str) -> Any:
            source = super().get_source(environment, template)
            require_inside(Path(str(source[1])), folder)
            return source

    our_loader = jinja2.PrefixLoader({OUR_PREFIX: jinja2.FileSystemLoader(TEMPLATES)})
    loader = jinja2.ChoiceLoader([LabLoader(folder), our_loader])
    return _strict_environment(ImmutableSandboxedEnvironment, loader)


def _strict_environment(
    kind: type[jinja2.Environment], loader: jinja2.BaseLoader
) -> jinja2.Environment:
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


def _with_github_brackets(environment: jinja2.Environment, name: str) -> jinja2.Environment:
    """GitHub's workflows use double braces themselves: our values are in double brackets there."""
    if not name.startswith("github"):
        return environment
    return environment.overlay(variable_start_string="[[", variable_end_string="]]")


def as_yaml(value: object) -> str:
    """A YAML scalar: plain if every YAML reader agrees that it is this text, else in double
    quotes (JSON is YAML).
    """
    if not isinstance(value, str):
        return json.dumps(value)
    is_plain = value[:1].isalpha() and value.lower() not in YAML_KEYWORDS
    for character in value:
        if not (character.isalnum() or character in "=.*_+-/<>"):
            is_plain = False
    return value if is_plain else json.dumps(value)


def as_command(arguments: Sequence[str]) -> str:
    """One line that bash splits into exactly these arguments, whatever characters they have."""
    quoted = []
    for argument in arguments:
        if argument.isprintable():
            quoted.append(shlex.quote(argument))
        else:
            quoted.append(_ansi_c_quoted(argument))
    return " ".join(quoted)


def _ansi_c_quoted(argument: str) -> str:
    """An argument in bash's $'...', in which each unprintable byte is written as \\xNN."""
    text = ""
    for character in argument:
        if character.isprintable() and character not in "\\'":
            text += character
        else:
            text += "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))
    return f"$'{text}'"


def as_comment(text: str) -> str:
    """One line. conda-lock would read square brackets as a platform selector."""
    return " ".join(text.split()).replace("[", "(").replace("]", ")")
