"""`provision run` and `provision shell`: a command or a shell in an environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from provision.cli.freshness import freshness_options, up_to_date
from provision.cli.hang_options import hang_options, parse_hang_options
from provision.cli.options import WordsBeforeOptions, dry_run_option, prefix_option
from provision.cli.start import starts_ranks
from provision.cli.verb import run_or_print, verb

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.launch import OnHang


class CommandLine(WordsBeforeOptions):
    """NAME [OPTIONS] [--] COMMAND...: the first word after NAME that is no option begins COMMAND.

    So options of the command need no `--` before it.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = list(args)
        options = self._take_options(ctx, rest)
        name = [rest.pop(0)] if rest and rest[0] != "--" else []
        options += self._take_options(ctx, rest)
        if rest and rest[0] == "--":
            rest.pop(0)
        return super().parse_args(ctx, [*options, "--", *name, *rest])

    def leading_words(self, context: click.Context, args: list[str]) -> tuple[list[str], bool]:
        """Options and what follows them, up to a `--` that is not the command's."""
        rest = list(args)
        options = self._take_options(context, rest)
        name = [rest.pop(0)] if rest and rest[0] != "--" else []
        own = {flag for parameter in self.get_params(context) for flag in parameter.opts}
        while name and rest and rest[0].partition("=")[0] in own:  # others are the command's
            options += self._take_options(context, rest)
        if rest and rest[0] == "--":
            return [*options, "--", *name], True
        return [*options, "--", *name, *rest], False

    def _take_options(self, ctx: click.Context, arguments: list[str]) -> list[str]:
        """Remove the options at the start of `arguments`, with their values, and return them."""
        with_value = set()
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and not parameter.is_flag:
                with_value.update(parameter.opts)
        options = []
        while arguments and arguments[0].startswith("-") and arguments[0] != "--":
            option = arguments.pop(0)
            options.append(option)
            if option in with_value and arguments:
                options.append(arguments.pop(0))
        return options


@click.command(cls=CommandLine)
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--image",
    is_flag=True,
    help="Run in the environment's image, with the current folder as /workspace, as your user.",
)
@hang_options
@click.option(
    "--record",
    is_flag=True,
    help="Let ranks record their collectives for `provision why`; for Gloo and old NCCL.",
)
@prefix_option
@freshness_options
@dry_run_option
@verb
def run(
    console: Console,
    name: str,
    command: tuple[str, ...],
    image: bool,
    record: bool,
    envs: Path | None,
    prefix: Path | None,
    dry_run: bool,
    hang_after: str | None,
    on_hang: OnHang | None,
    **options: bool,
) -> None:
    """Run a command in an environment.

    If the environment is not up to date (its lock or spec.yml was changed, or a package), a warning
    says so. The exit code is the command's. PATH begins with the environment's programs; PYTHONPATH,
    PYTHONHOME and LD_LIBRARY_PATH are dropped, because they can bring in other builds.

    When ranks of `torchrun` (or `accelerate launch`, `fabric run`) fail, the last lines say which
    failed first, and why. When all of them do nothing, a page says who waits for whom.
    """
    from provision.core.errors import InvalidSpec
    from provision.core.paths import default_folders
    from provision.verbs.run import run as command_run
    from provision.verbs.run.recorded import record_run

    if on_hang == "requeue":
        raise InvalidSpec(
            "`run` is not in a queue, so it cannot be requeued.",
            advice="`provision launch --on slurm:PARTITION --requeue N --on-hang requeue` does that; or "
            "use --on-hang end.",
        )
    if image and (prefix or hang_after or on_hang):
        raise InvalidSpec(
            "--image cannot be combined with --prefix, --hang-after or --on-hang.",
            advice="Leave out --image or the others.",
        )
    if image:
        _run_in_image(console, name, command, envs, dry_run)
        return
    folders = default_folders(envs)
    installed = up_to_date(console, name, envs=envs, path=prefix, dry_run=dry_run, **options)
    launch = command_run.run_launch(installed, command, record=record)
    hang_options = parse_hang_options(hang_after, on_hang)
    watched = command_run.watched_launch(installed, command, launch.variables, *hang_options)
    if watched is None and (hang_after or on_hang):
        raise InvalidSpec(
            f"provision cannot watch ranks of `{command[0]}`.",
            advice="--hang-after and --on-hang are for torchrun, accelerate launch and fabric run.",
        )
    launch = watched or launch
    if not dry_run:
        has_options = any((prefix, envs, record, *options.values()))
        if not (has_options or console.narrative or starts_ranks(command)):
            record_run(folders, installed, command, launch.variables)
    run_or_print(console, launch.argv, launch.variables, dry_run=dry_run)


def _run_in_image(
    console: Console, name: str, command: tuple[str, ...], envs: Path | None, dry_run: bool
) -> None:
    from provision.cli.spec_options import build_request
    from provision.cli.verb import context_of
    from provision.launch import RunOptions
    from provision.workflow.image.image import run_argv
    from provision.workflow.plan import make_plan

    context = context_of(console, envs)
    plan = make_plan(context, build_request(name, {}))
    argv = run_argv(context, plan, RunOptions(), command, folder=Path.cwd())
    run_or_print(console, argv, dry_run=dry_run)


@click.command()
@click.argument("name")
@prefix_option
@freshness_options
@verb
def shell(
    console: Console, name: str, envs: Path | None, prefix: Path | None, **options: bool
) -> None:
    """Start a shell in an environment.

    bash, zsh or fish, as $SHELL says, with your own settings. `exit` leaves it.
    """
    import sys

    from provision.core.process import exec_command
    from provision.verbs.run import run as command_run

    installed = up_to_date(console, name, envs=envs, path=prefix, **options)
    interactive = sys.stdin.isatty()
    launch = command_run.shell_launch(installed, interactive=interactive)
    if interactive:
        console.info(f"{name}: leave with `exit`")
    exec_command(launch.argv, launch.variables)
