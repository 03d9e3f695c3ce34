"""`provision checkpoint` and its verbs: inspect and prune the checkpoints of a job.

The verbs and their options are those of the runtime's own command line (inspection/verbs.json).
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from provision.cli.verb import verb
from provision_runtime.checkpoint.inspection import command
from provision_runtime.checkpoint.inspection.root import CheckpointError
from provision_runtime.report.options import Option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from provision.cli.console import Console


class Parsed(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A value as the runtime's own command line reads it. name: a key of its PARSERS."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> object:
        try:
            return command.PARSERS[self.name](str(value))
        except (ArgumentTypeError, ValueError) as error:
            self.fail(str(error), parameter, context)


@click.group()
def checkpoint() -> None:
    """Inspect, prune and convert the checkpoints of training jobs.

    For jobs that save with `provision_runtime.checkpoint`. Only import and export need torch. You may
    run all of them while a job saves. ROOT is the folder that the job passes to `checkpoint.save`.
    """


def _run(console: Console, name: str, arguments: dict[str, Any]) -> int:
    from provision.cli.console import output_width
    from provision.core.errors import IntegrityError, InvalidSpec, SystemRefused
    from provision.verbs.checkpoint.output import result_lines

    if name == "verify" and arguments["all"] and arguments["step"] != "latest":
        raise click.UsageError(
            "--all verifies every checkpoint, --step only one: use one of the two."
        )

    @contextmanager
    def start_meter(total: int) -> Iterator[Callable[[int], None]]:
        with console.meter("verifying", total) as meter:
            yield meter.advance

    try:
        result, has_problems = command.perform(name, arguments, start_meter)
    except CheckpointError as error:
        message, advice, is_damage = command.describe(name, error)
        raise (IntegrityError if is_damage else InvalidSpec)(message, advice=advice) from error
    console.result(f"checkpoint-{name}", result, result_lines(result, output_width()))
    if not has_problems:
        return 0
    return SystemRefused.exit_code if name == "prune" else 1


def _parameter(option: Option) -> click.Option:
    if not option.kind:
        return click.Option([option.name], is_flag=True, help=option.help)
    default = {} if option.required else {"default": option.default}  # None would count as given
    return click.Option(
        [option.name],
        type=Parsed(option.kind),
        multiple=option.multiple,
        show_default=bool(option.default),
        required=option.required,
        metavar=option.metavar,
        help=option.help,
        **default,
    )


def _command(row: command.Verb) -> click.Command:
    def run(console: Console, **arguments: Any) -> int:
        return _run(console, row.name, arguments)

    parameters: list[click.Parameter] = [click.Argument([name]) for name in row.arguments]
    parameters += map(_parameter, row.options)
    return click.Command(row.name, callback=verb(run), params=parameters, help=row.help)


for _row in command.verbs():
    checkpoint.add_command(_command(_row))
