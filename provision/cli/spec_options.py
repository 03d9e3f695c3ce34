"""The options that request an environment, one for each key of spec.yml, and the request they make."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import Command, mirror_option, option_group
from provision.cli.shared_options import ARGUMENTS, shared_value
from provision.core.spec_fields import QUERY_KEYS, SPEC_KEYS, SpecKey

if TYPE_CHECKING:
    from provision.workflow.context import Context
    from provision.workflow.plan import BuildRequest

SPEC_OPTIONS = tuple(key.name for key in SPEC_KEYS)
# The sections of keys in the help; the other keys are in "Request".
SECTIONS = {
    **dict.fromkeys(("source", "channels", "python_from", "as_of"), "Source"),
    "smoke": "Smoke",
}
# Kinds of keys that have only some values.
KINDS_WITH_CHOICES = ("source", "sources")


class SourceChoice(click.Choice[str]):
    """The names of the sources, which are read when a verb needs them and not for `--help`.

    Importing the sources reads the catalog, which takes as long as everything else in `--help`.
    """

    def __init__(self, key: SpecKey) -> None:
        self._key = key
        self.case_sensitive = True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        from provision import sources

        return sources.allowed_choices(self._key)


def option_of(key: SpecKey) -> Callable[[Command], Command]:
    option = key.option or f"--{key.name}"
    settings: dict[str, Any] = {"help": key.help, "metavar": key.metavar}
    if key.default:
        settings["help"] = f"{key.help}  [default: {key.default}]"
    if key.kind in KINDS_WITH_CHOICES:
        settings["type"] = SourceChoice(key)
    elif key.choices:
        settings["type"] = click.Choice(key.choices)
    if key.is_list:
        settings["multiple"] = True
    elif key.kind == "switch":
        settings["is_flag"] = True
    elif key.kind == "flag":
        option = f"{option}/{key.negative_option}"
        settings["default"] = None  # not given, which leaves the answer to spec.yml
    section = SECTIONS.get(key.name, "Request")
    return option_group(click.option(option, key.name, **settings), section=section)


def options_of(keys: Iterable[SpecKey]) -> Callable[[Command], Command]:
    return option_group(*(option_of(key) for key in keys if not key.in_file_only))


# What an environment is requested to be, and which builds of the matrix are meant.
request_options = option_group(options_of(SPEC_KEYS), mirror_option)
query_options = options_of(QUERY_KEYS)
_KEYS_BY_NAME = {key.name: key for key in SPEC_KEYS}
settings_option = option_of(_KEYS_BY_NAME["smoke"])
base_option = option_of(_KEYS_BY_NAME["base"])


def name_argument(command: Command) -> Command:
    """NAME, and the paragraph of the help that explains it."""
    summary = inspect.cleandoc(command.__doc__ or "")
    command.__doc__ = (
        f"{summary}\n\nNAME is an environment with a spec.yml in the envs folder; options override "
        "what the file says. Without NAME, --torch describes an environment and gives it its name; "
        "without both, it is the project's default."
    )
    return click.argument("name", required=False, callback=_refuse_second_package)(command)


def _refuse_second_package(
    context: click.Context, parameter: click.Parameter, name: str | None
) -> str | None:
    """`--pip einops numpy` requests no environment called numpy."""
    if name is None:
        return None
    typed = context.meta.get(ARGUMENTS, ())
    for option, package, token in zip(typed, typed[1:], typed[2:]):
        if token != name or option not in ("--pip", "--conda"):
            continue
        envs = Path(shared_value(context, "envs") or os.environ.get("PROVISION_ENVS") or "envs")
        if not (envs / name).exists():
            raise click.UsageError(
                f"`{name}` would be the name of a new environment. {option} takes one package: "
                f"write {option} {package} {option} {name}, or put the environment's name first."
            )
    return name


def spec_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a command that are keys of spec.yml."""
    return {key: options[key] for key in SPEC_OPTIONS if key in options}


def build_request(name: str | None, options: Mapping[str, Any], **fields: Any) -> BuildRequest:
    """The request that a command's options make.

    fields: of BuildRequest, beyond its spec and its smoke test.
    """
    from provision.workflow.plan import BuildRequest
    from provision.workflow.smoke.request import SmokeRequest

    smoke_fields = [field.name for field in dataclasses.fields(SmokeRequest)]
    smoke_options = {key: options[key] for key in smoke_fields if options.get(key)}
    return BuildRequest(
        name=name,
        options=spec_options(options),
        smoke_request=SmokeRequest(**smoke_options),
        **fields,
    )


def requests_of_all(
    context: Context, name: str | None, options: Mapping[str, Any], **fields: Any
) -> list[BuildRequest]:
    """--all: a request for each environment of the envs folder.

    Raises InvalidSpec if one was also named or described.
    """
    from provision.core.errors import InvalidSpec
    from provision.workflow.batch import environment_names

    conflicting = list(build_request(name, options).option_flags().values())
    if name:
        conflicting.insert(0, f"the name `{name}`")
    if conflicting:
        raise InvalidSpec(
            "--all uses each environment's spec.yml, and cannot be combined with "
            f"{', '.join(conflicting)}.",
            advice="Leave out --all, or everything else.",
        )
    return [build_request(name, options, **fields) for name in environment_names(context)]
