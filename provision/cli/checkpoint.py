"""`provision checkpoint` and what lies below it: the checkpoints of a job, looked at from outside."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import dry_run_option, option_group, output_options, verb

if TYPE_CHECKING:
    from provision.cli.console import Console

DIGITS = 18


class Step(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A step's number, or `latest`."""

    name = "N|latest"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> int | str:
        text = str(value)
        if text == "latest":
            return text
        if not (text.isascii() and text.isdecimal()) or len(text) > DIGITS:
            self.fail(f"{text!r} is neither the number of a step nor `latest`.", parameter, context)
        return int(text)


def _settings(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, Any]:
    """KEY=VALUE as fsspec takes them; what is JSON is taken as such, so that numbers and objects can be given."""
    found = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not key or not sign:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE.", context, parameter)
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


store = option_group(
    click.argument("root"),
    click.option(
        "--option",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        callback=_settings,
        help="For a root that is a URL: an option of fsspec's store, e.g. endpoint_url=http://host:9000. May be repeated.",
    ),
)
step_option = click.option(
    "--step", type=Step(), default="latest", show_default=True, help="Which one."
)


@click.group()
def checkpoint() -> None:
    """The checkpoints of a job that saves with `inside.checkpoint`: list, verify, show, prune. Needs no torch, may run beside the job.

    ROOT is the folder that the job gives to `checkpoint.save`, or a URL (s3://bucket/run) where fsspec is installed.
    """


@checkpoint.command("list")
@store
@output_options
@verb
def list_(console: Console, root: str, settings: dict[str, Any]) -> None:
    """What lies in ROOT: every checkpoint with its size and what it shares with others, and what writers have not finished.

    Files are not read: `checkpoint verify` does that.
    """
    from provision.cli.format.checkpoint import list_lines
    from provision.commands import checkpoint as workflow

    with workflow.store_errors(root):
        found = workflow.listed(workflow.open_root(root, settings))
    console.result(found, list_lines(found))


@checkpoint.command()
@store
@step_option
@output_options
@verb
def show(console: Console, root: str, settings: dict[str, Any], step: int | str) -> None:
    """What is in a checkpoint: its tensors with type, shape, bytes and files, its objects, and its files with their hashes (--json)."""
    from provision.cli.format.checkpoint import show_lines
    from provision.commands import checkpoint as workflow

    with workflow.store_errors(root):
        found = workflow.shown(workflow.open_root(root, settings), step)
    console.result(found, show_lines(found))


@checkpoint.command()
@store
@step_option
@click.option(
    "--all", "every", is_flag=True, help="Every checkpoint; a file that several share is read once."
)
@output_options
@verb
def verify(
    console: Console, root: str, settings: dict[str, Any], step: int | str, every: bool
) -> int:
    """Whether checkpoints are what was committed: every file is hashed, each damage named with the tensors it concerns.

    Exit code 1 unless all are whole.
    """
    from provision.cli.format.checkpoint import verify_lines
    from provision.commands import checkpoint as workflow

    if every and step != "latest":
        raise click.UsageError("--all takes every checkpoint, --step one: give one of them.")
    with workflow.store_errors(root):
        found = workflow.verified(
            workflow.open_root(root, settings), "all" if every else step, console
        )
    console.result(found, verify_lines(found))
    return 0 if found.is_whole else 1


@checkpoint.command()
@store
@click.option(
    "--keep",
    type=click.IntRange(1),
    metavar="N",
    help="Keep the N steps that were committed last and can be read.",
)
@click.option(
    "--every", type=click.IntRange(1), metavar="K", help="Also keep the steps that K divides."
)
@click.option(
    "--unfinished",
    "named",
    multiple=True,
    metavar="NAME",
    help="Remove this unfinished folder, whose writer you know to have ended. May be repeated.",
)
@dry_run_option
@output_options
@verb
def prune(
    console: Console,
    root: str,
    settings: dict[str, Any],
    keep: int | None,
    every: int | None,
    named: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Remove old checkpoints, and what writers left that have certainly ended; say how many bytes that frees.

    The latest checkpoint always stays, and so does what later ones share with those that go.

    \b
    provision checkpoint prune run/checkpoints --keep 3 --every 10000 --dry-run
    """
    from provision.cli.format.checkpoint import prune_lines
    from provision.commands import checkpoint as workflow

    if keep is None and (every is not None or not named):
        raise click.UsageError("Say how many to keep, e.g. --keep 3.")
    with workflow.store_errors(root):
        found = workflow.pruned(
            workflow.open_root(root, settings), keep, every=every, named=named, dry_run=dry_run
        )
    console.result(found, prune_lines(found))
