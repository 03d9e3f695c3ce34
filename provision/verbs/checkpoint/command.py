"""`provision checkpoint` and its verbs: inspect and prune the checkpoints of a job."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import dry_run_option, option_group
from provision.cli.verb import verb

if TYPE_CHECKING:
    from provision.cli.console import Console

MAX_STEP_DIGITS = 18


class Step(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A step's number, or `latest`."""

    name = "N|latest"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> int | str:
        text = str(value)
        if text == "latest":
            return text
        if not (text.isascii() and text.isdecimal()) or len(text) > MAX_STEP_DIGITS:
            self.fail(f"{text!r} is neither the number of a step nor `latest`.", parameter, context)
        return int(text)


def _parse_options(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any]:
    """KEY=VALUE; a value that is JSON is parsed, so that numbers and objects can be given."""
    parsed = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not key or not sign:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE.", context, parameter)
        try:
            parsed[key] = json.loads(value)
        except ValueError:
            parsed[key] = value
    return parsed


root_and_options = option_group(
    click.argument("root"),
    click.option(
        "--option",
        "store_options",
        multiple=True,
        metavar="KEY=VALUE",
        callback=_parse_options,
        help="For a ROOT that is a URL: an option of its fsspec file system, e.g. "
        "endpoint_url=http://host:9000. Repeatable.",
    ),
)
step_option = click.option(
    "--step", type=Step(), default="latest", show_default=True, help="Step of the checkpoint."
)


@click.group()
def checkpoint() -> None:
    """Inspect and prune the checkpoints of training jobs.

    For jobs that save with `provision_runtime.checkpoint`. Needs no torch, and may run while a job
    saves. ROOT is the folder that the job passes to `checkpoint.save`, or a URL (s3://bucket/run)
    if fsspec is installed.
    """


@checkpoint.command("list")
@root_and_options
@verb
def list_(console: Console, root: str, store_options: dict[str, Any]) -> None:
    """List checkpoints and unfinished saves, with their sizes.

    Shows own bytes and bytes shared with other checkpoints. Reads only manifests; `checkpoint
    verify` reads the files.
    """
    from provision.verbs.checkpoint.checkpoint import inspect
    from provision.verbs.checkpoint.output import list_lines

    inventory = inspect("list", root, store_options, [], console)
    console.result("checkpoint-list", inventory, list_lines(inventory))


@checkpoint.command()
@root_and_options
@step_option
@verb
def show(console: Console, root: str, store_options: dict[str, Any], step: int | str) -> None:
    """Show the tensors and objects of a checkpoint.

    Shows type, shape, bytes and files. --json adds the files with their hashes.
    """
    from provision.cli.console import output_width
    from provision.verbs.checkpoint.checkpoint import inspect
    from provision.verbs.checkpoint.output import show_lines

    contents = inspect("show", root, store_options, ["--step", str(step)], console)
    console.result("checkpoint-show", contents, show_lines(contents, width=output_width()))


@checkpoint.command()
@root_and_options
@step_option
@click.option(
    "--all",
    "all_steps",
    is_flag=True,
    help="Verify every checkpoint; reads a file that several share only once.",
)
@verb
def verify(
    console: Console, root: str, store_options: dict[str, Any], step: int | str, all_steps: bool
) -> int:
    """Hash every file of a checkpoint to find damaged ones.

    Names each damaged file with the tensors that it holds. The exit code is 1 unless all
    checkpoints are intact.
    """
    from provision.verbs.checkpoint.checkpoint import inspect
    from provision.verbs.checkpoint.output import verify_lines

    if all_steps and step != "latest":
        raise click.UsageError(
            "--all verifies every checkpoint, --step only one: use one of the two."
        )
    which = ["--all"] if all_steps else ["--step", str(step)]
    audit = inspect("verify", root, store_options, which, console)
    console.result("checkpoint-verify", audit, verify_lines(audit))
    is_whole = all(row["verdict"] == "whole" for row in audit["checkpoints"])
    return 0 if is_whole else 1


@checkpoint.command()
@root_and_options
@click.option(
    "--keep",
    type=click.IntRange(1),
    metavar="N",
    help="Keep the N steps that were committed last, of those that can be read.",
)
@click.option(
    "--every",
    type=click.IntRange(1),
    metavar="K",
    help="Also keep every step that is a multiple of K.",
)
@click.option(
    "--unfinished",
    multiple=True,
    metavar="NAME",
    help="Remove this unfinished folder, whose writer has ended. Repeatable.",
)
@dry_run_option
@verb
def prune(
    console: Console,
    root: str,
    store_options: dict[str, Any],
    keep: int | None,
    every: int | None,
    unfinished: tuple[str, ...],
    dry_run: bool,
) -> int:
    """Remove old checkpoints, and what dead writers left.

    Reports how many bytes that frees. Always keeps the latest checkpoint, files that remaining
    checkpoints share, and links to checkpoints. Before that, copies what would exist only once.

    \b
    provision checkpoint prune run/checkpoints --keep 3 --every 10000 --dry-run
    """
    from provision.core.errors import SystemRefused
    from provision.verbs.checkpoint.checkpoint import inspect
    from provision.verbs.checkpoint.output import prune_lines

    if keep is None and (every is not None or not unfinished):
        raise click.UsageError("Say how many checkpoints to keep, e.g. --keep 3.")
    arguments = []
    if keep is not None:
        arguments += ["--keep", str(keep)]
    if every is not None:
        arguments += ["--every", str(every)]
    for name in unfinished:
        arguments.append(f"--unfinished={name}")
    if dry_run:
        arguments.append("--dry-run")
    cleanup = inspect("prune", root, store_options, arguments, console)
    console.result("checkpoint-prune", cleanup, prune_lines(cleanup))
    return SystemRefused.exit_code if cleanup["problems"] else 0
