"""`provision checkpoint` and its verbs: inspect and prune the checkpoints of a job."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import dry_run_option, option_group
from provision.cli.verb import verb

if TYPE_CHECKING:
    from provision.cli.console import Console


class Step(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A step's number, or `latest`."""

    name = "N|latest"

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> int | str:
        from provision_runtime.checkpoint.inspection.command import parse_step

        try:
            return parse_step(str(value))
        except ArgumentTypeError as error:
            self.fail(str(error), parameter, context)


def _callback(parse: Callable[[Any], object]) -> Callable[..., object]:
    """A callback of click, from a function of the runtime's own command line."""

    def checked(context: click.Context, parameter: click.Parameter, value: object) -> object:
        try:
            return parse(value)
        except ArgumentTypeError as error:
            raise click.BadParameter(str(error), context, parameter) from error

    return checked


def _options(texts: tuple[str, ...]) -> dict[str, object]:
    from provision_runtime.checkpoint.inspection.command import parse_option

    return dict(map(parse_option, texts))


def _renames(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    from provision_runtime.checkpoint.inspection.transfer import parse_rename

    return tuple(map(parse_rename, texts))


root_and_options = option_group(
    click.argument("root"),
    click.option(
        "--option",
        "store_options",
        multiple=True,
        metavar="KEY=VALUE",
        callback=_callback(_options),
        help="For a ROOT that is a URL: an option of its fsspec file system, e.g. "
        "endpoint_url=http://host:9000. Repeatable.",
    ),
)
rename_option = click.option(
    "--rename",
    "renames",
    multiple=True,
    metavar="PATTERN=REPLACEMENT",
    callback=_callback(_renames),
    help="Change names as Python's re.sub does, e.g. '^model\\.=' or '^=model.'. Repeatable, in "
    "order.",
)
step_option = click.option(
    "--step", type=Step(), default="latest", show_default=True, help="Step of the checkpoint."
)


@click.group()
def checkpoint() -> None:
    """Inspect, prune and convert the checkpoints of training jobs.

    For jobs that save with `provision_runtime.checkpoint`. Only import, and export with --dtype,
    need torch. All may run while a job saves. ROOT is the folder that the job passes to
    `checkpoint.save`, or a URL (s3://bucket/run) if fsspec is installed.
    """


@checkpoint.command("list")
@root_and_options
@verb
def list_(console: Console, root: str, store_options: dict[str, object]) -> None:
    """List checkpoints and unfinished saves, with their sizes.

    Shows exclusive bytes and bytes shared with other checkpoints. Reads only manifests; `checkpoint
    verify` reads the files.
    """
    from provision.verbs.checkpoint.checkpoint import provision_errors
    from provision.verbs.checkpoint.output import list_lines
    from provision_runtime.checkpoint.inspection.inventory import take_inventory
    from provision_runtime.checkpoint.inspection.root import opened

    with provision_errors(), opened(root, store_options) as backend:
        inventory = take_inventory(backend)
    console.result("checkpoint-list", inventory, list_lines(inventory))


@checkpoint.command()
@root_and_options
@step_option
@verb
def show(console: Console, root: str, store_options: dict[str, object], step: int | str) -> None:
    """Show the tensors and objects of a checkpoint.

    Shows type, shape, bytes and files. --json adds the files with their hashes.
    """
    from provision.cli.console import output_width
    from provision.verbs.checkpoint.checkpoint import provision_errors
    from provision.verbs.checkpoint.output import show_lines
    from provision_runtime.checkpoint.inspection.contents import read_contents
    from provision_runtime.checkpoint.inspection.root import opened

    with provision_errors(), opened(root, store_options) as backend:
        contents = read_contents(backend, step)
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
    console: Console, root: str, store_options: dict[str, object], step: int | str, all_steps: bool
) -> int:
    """Hash every file of a checkpoint to find damaged ones.

    Names each damaged file with the tensors that it holds. The exit code is 1 unless all
    checkpoints are intact.
    """
    from provision.verbs.checkpoint.checkpoint import provision_errors, verifying
    from provision.verbs.checkpoint.output import verify_lines
    from provision_runtime.checkpoint.inspection.audit import ALL, audit
    from provision_runtime.checkpoint.inspection.root import opened

    if all_steps and step != "latest":
        raise click.UsageError(
            "--all verifies every checkpoint, --step only one: use one of the two."
        )
    with provision_errors(), opened(root, store_options) as backend:
        result = audit(backend, ALL if all_steps else step, partial(verifying, console))
    console.result("checkpoint-verify", result, verify_lines(result))
    return 0 if result.is_whole else 1


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
    store_options: dict[str, object],
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
    from provision.verbs.checkpoint.checkpoint import provision_errors
    from provision.verbs.checkpoint.output import prune_lines
    from provision_runtime.checkpoint.inspection.inventory import clean_up
    from provision_runtime.checkpoint.inspection.root import opened

    if keep is None and (every is not None or not unfinished):
        raise click.UsageError("Say how many checkpoints to keep, e.g. --keep 3.")
    with provision_errors(), opened(root, store_options) as backend:
        cleanup = clean_up(backend, keep, every=every, unfinished=unfinished, dry_run=dry_run)
    console.result("checkpoint-prune", cleanup, prune_lines(cleanup))
    return SystemRefused.exit_code if cleanup.problems else 0


@checkpoint.command()
@root_and_options
@step_option
@click.option(
    "--safetensors",
    "target",
    required=True,
    metavar="DIR",
    help="New folder for the files: model.safetensors, or several and an index.",
)
@click.option(
    "--part",
    default="",
    metavar="NAME",
    help="Export only what is below NAME, e.g. model; names lose it.",
)
@rename_option
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Type of all tensors of floats (8-bit ones stay). Needs torch.",
)
@click.option(
    "--shard-size",
    type=click.FloatRange(0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="GB",
    help="Begin another file at this size.",
)
@verb
def export(
    console: Console,
    root: str,
    store_options: dict[str, object],
    step: int | str,
    target: str,
    part: str,
    renames: tuple[tuple[str, str], ...],
    dtype: str | None,
    shard_size: float,
) -> None:
    """Write the tensors of a checkpoint as files of safetensors.

    transformers reads the folder, once it has the model's config.json. DIR must not exist; it
    appears only when it is whole. Every byte is verified. ROOT may be the folder of one checkpoint.
    """
    from provision.verbs.checkpoint.checkpoint import provision_errors
    from provision.verbs.checkpoint.output import transfer_lines
    from provision_runtime.checkpoint.inspection.transfer import ExportOptions, export_step

    chosen = ExportOptions(part, renames, dtype, shard_size)
    with provision_errors():
        exported = export_step(root, store_options, step, target, chosen)
    console.result("checkpoint-export", exported, transfer_lines(exported))


@checkpoint.command("import")
@click.argument("source")
@root_and_options
@click.option(
    "--step", type=click.IntRange(0), required=True, metavar="N", help="Number of the new step."
)
@rename_option
@click.option(
    "--allow-pickle",
    is_flag=True,
    help="Unpickle objects, which can run code: only if you trust the author.",
)
@verb
def import_(
    console: Console,
    source: str,
    root: str,
    store_options: dict[str, object],
    step: int,
    renames: tuple[tuple[str, str], ...],
    allow_pickle: bool,
) -> None:
    """Save files of torch, Lightning or safetensors as a checkpoint.

    SOURCE is a file of torch.save (also a .ckpt of Lightning) or of safetensors, a folder of
    safetensors with an index, or a folder of torch.distributed.checkpoint. Needs torch. A class that
    would run code is named and refused.
    """
    from provision.verbs.checkpoint.checkpoint import provision_errors
    from provision.verbs.checkpoint.output import transfer_lines
    from provision_runtime.checkpoint.inspection.transfer import import_step

    with provision_errors():
        imported = import_step(source, root, store_options, step, renames, allow_pickle)
    console.result("checkpoint-import", imported, transfer_lines(imported))
