"""`provision init` and `provision import`: start from what a repository has already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from provision.cli.options import dry_run_option, option_group
from provision.cli.verb import verb

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.verbs.init.init import Proposal

proposal_options = option_group(
    click.option(
        "--name", metavar="NAME", help="Name of the environment.  [default: the folder's name]"
    ),
    click.option("--yes", is_flag=True, help="Write spec.yml without asking."),
    dry_run_option,
)


@click.command()
@proposal_options
@verb
def init(console: Console, name: str | None, yes: bool, dry_run: bool, envs: Path | None) -> None:
    """Propose a spec.yml for this repository.

    Reads environment.yml, requirements.txt or pyproject.toml (the first that exists), else the
    active conda environment, and asks nvidia-smi about this machine.
    """
    from provision.cli.verb import context_of
    from provision.core.host import this_machine
    from provision.verbs.init import init as command

    context = context_of(console, envs)
    proposal = command.propose(context, Path.cwd(), this_machine(), name=name)
    _offer(console, proposal, yes=yes, dry_run=dry_run)


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@proposal_options
@verb
def import_(
    console: Console,
    file: Path,
    name: str | None,
    yes: bool,
    dry_run: bool,
    envs: Path | None,
) -> None:
    """Make a spec.yml from another tool's file.

    FILE is an environment.yml, a requirements.txt, a pyproject.toml, or what `conda env export`
    printed (with --from-history, it lists only what you requested).
    """
    from provision.cli.verb import context_of
    from provision.core.host import this_machine
    from provision.verbs.init import init as command

    context = context_of(console, envs)
    proposal = command.propose_from(context, file, this_machine(), name=name)
    _offer(console, proposal, yes=yes, dry_run=dry_run)


def _offer(console: Console, proposal: Proposal, *, yes: bool, dry_run: bool) -> None:
    """Show a proposal, and write it if the user agrees."""
    import sys

    from provision.cli.console import for_stream
    from provision.cli.text import home_path
    from provision.core.errors import InvalidSpec
    from provision.verbs.init import init as command
    from provision.verbs.init.output import proposal_lines, written_lines

    if dry_run:
        console.result("init", proposal, proposal_lines(proposal))
        return
    if not yes:
        if console.as_json or not sys.stdin.isatty():
            raise InvalidSpec(
                "Nobody can be asked here whether to write the file.",
                advice="--yes writes it, --dry-run shows it.",
            )
        click.echo(for_stream("\n".join(proposal_lines(proposal)), sys.stdout))
        if not click.confirm(f"Write {home_path(proposal.path)}?", default=True):
            return
        command.write(proposal)
        console.result("init", proposal, written_lines(proposal))
        return
    command.write(proposal)
    console.result("init", proposal, [*proposal_lines(proposal), *written_lines(proposal)])
