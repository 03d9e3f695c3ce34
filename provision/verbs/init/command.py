"""`provision init` and `provision import`: start from what a repository has already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import dry_run_option, mirror_option, option_group
from provision.cli.verb import verb

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.project_files.decision import Choices
    from provision.project_files.toml_file import Selection
    from provision.verbs.init.init import CudaChoice, Reading
    from provision.workflow.context import Context

proposal_options = option_group(
    click.option(
        "--name", metavar="NAME", help="Name of the environment.  [default: the folder's name]"
    ),
    click.option(
        "--torch", metavar="VERSION", help="PyTorch release, instead of what the files say."
    ),
    click.option("--cuda", metavar="X.Y", help="CUDA version, instead of what the files say."),
    click.option(
        "--cpu", is_flag=True, help="A build without CUDA, instead of what the files say."
    ),
    click.option("--python", metavar="X.Y", help="Python version, instead of what the files say."),
    click.option(
        "--group",
        "groups",
        metavar="NAME",
        multiple=True,
        help="Also take this dependency group (of pyproject.toml, pixi or Pipfile). Repeatable.",
    ),
    click.option(
        "--extra",
        "extras",
        metavar="NAME",
        multiple=True,
        help="Also take this extra of the project. Repeatable.",
    ),
    click.option("-y", "--yes", is_flag=True, help="Write spec.yml without asking."),
    dry_run_option,
    mirror_option,
)


@click.command()
@proposal_options
@verb
def init(console: Console, envs: Path | None, **options: Any) -> None:
    """Propose a spec.yml for this repository.

    Reads its files (environment.yml, pixi.toml, requirements.txt, pyproject.toml, Pipfile,
    setup.cfg, setup.py; the first leads, and the others add to it) and what its Dockerfile, scripts
    and README install, and asks nvidia-smi about this machine.
    """
    from provision.cli.verb import context_of
    from provision.verbs.init import init as command

    context = context_of(console, envs, options)
    selection = _selection(options, "provision init")
    reading = command.read_repository(Path.cwd(), _choices(options), selection)
    _offer(console, context, reading, options)


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@proposal_options
@verb
def import_(console: Console, file: Path, envs: Path | None, **options: Any) -> None:
    """Make a spec.yml from another tool's file.

    FILE is an environment.yml, a requirements.txt, a pyproject.toml, a pixi.toml, a Pipfile, a
    setup.cfg or setup.py (which is not run), a pylock.toml, uv.lock or
    conda-lock.yml, a Dockerfile, shell script or README, or what `conda env export`, `conda list` or
    `pip freeze` printed.
    """
    from provision.cli.verb import context_of
    from provision.verbs.init import init as command

    context = context_of(console, envs, options)
    selection = _selection(options, f"provision import {file}")
    _offer(console, context, command.read_one(file, _choices(options), selection), options)


def _selection(options: dict[str, Any], command: str) -> Selection:
    from provision.project_files.toml_file import Selection

    groups, extras = frozenset(options["groups"]), frozenset(options["extras"])
    return Selection(command=command, groups=groups, extras=extras)


def _choices(options: dict[str, Any]) -> Choices:
    """The options that precede the files. Raises UsageError."""
    from provision.project_files.decision import Choices

    if options["cuda"] and options["cpu"]:
        raise click.UsageError("--cuda and --cpu are different builds.")
    return Choices(
        torch=options["torch"],
        cuda=options["cuda"],
        cpu=bool(options["cpu"]),
        python=options["python"],
    )


def _offer(console: Console, context: Context, reading: Reading, options: dict[str, Any]) -> None:
    """Show a proposal, and write it if the user agrees."""
    import sys

    from provision.cli.account import account_lines
    from provision.cli.console import for_stream
    from provision.cli.text import home_path
    from provision.core.errors import InvalidSpec, ProvisionError
    from provision.core.host import this_machine
    from provision.verbs.init import init as command
    from provision.verbs.init.output import proposal_lines, written_lines

    machine = this_machine()
    is_asking = not console.as_json and sys.stdin.isatty() and not options["yes"]
    try:
        command.require_decided(reading)
        choice = command.choose_cuda(context, reading.request, machine)
        if choice and choice.cuda is None:
            choice = _ask_cuda(reading, choice, is_asking=is_asking)
        proposal = command.propose(context, reading, machine, name=options["name"], choice=choice)
    except ProvisionError:
        if not console.as_json:
            for line in account_lines(command.printed_entries(reading, options["name"])):
                click.echo(for_stream(line, sys.stderr), err=True)
        raise
    lines = proposal_lines(proposal)
    if options["dry_run"]:
        console.result("init", proposal, lines)
        return
    if not options["yes"] and not is_asking:
        raise InvalidSpec(
            "There is no terminal to ask whether to write the file.",
            advice="--yes writes it, --dry-run shows it.",
        )
    if is_asking:
        click.echo(for_stream("\n".join(lines), sys.stdout))
        if not click.confirm(f"Write {home_path(proposal.path)}?", default=True):
            return
    command.write(proposal)
    before = [] if console.quiet or is_asking else lines
    console.result("init", proposal, [*before, *written_lines(proposal)])


def _ask_cuda(reading: Reading, choice: CudaChoice, *, is_asking: bool) -> CudaChoice:
    """The CUDA that the user names. Raises InvalidSpec where nobody can be asked."""
    from provision.cli.console import output_width, wrap
    from provision.verbs.init import init as command

    if not is_asking:
        raise command.no_cuda(reading.request, choice.note)
    sentence = f"No file states the CUDA version, and this machine does not show it: {choice.note}."
    click.echo("\n".join(wrap(sentence, output_width())))
    cuda = click.prompt(
        "CUDA version of the machines that will run this, or cpu",
        default=command.suggested_cuda(reading.request),
    )
    return command.CudaChoice(cuda=cuda.strip())
