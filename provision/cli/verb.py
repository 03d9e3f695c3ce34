"""What surrounds every verb: its console, its context, errors as exit codes, questions."""

from __future__ import annotations

import errno
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.shared_options import shared_value

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.core.errors import ProvisionError
    from provision.core.mirrors import MirrorSetting
    from provision.core.types import EnvironmentOutcome
    from provision.workflow.context import Context
    from provision.workflow.plan import PlanStep

# All that ends a line in YAML, a shell or systemd, or moves the cursor.
_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
INTERRUPT = "Interrupted"  # as `kind` of an error


def verb(command: Callable[..., int | None]) -> Callable[..., None]:
    """Give a command its Console, and turn what it raises into one line and an exit code."""
    takes_envs = "envs" in inspect.signature(command).parameters

    @wraps(command)
    def run(**options: Any) -> None:
        from provision.cli.console import Console
        from provision.cli.project_name import NOTES, project_folders
        from provision.core import notices, settings
        from provision.core.errors import ProvisionError
        from provision.core.system_errors import named_errors

        context = click.get_current_context()
        as_json, verbose, quiet, debug = (
            bool(shared_value(context, name)) for name in ("as_json", "verbose", "quiet", "debug")
        )
        console = Console(as_json=as_json, verbose=verbose or debug, quiet=quiet)
        notices.listen(console.warn)
        if takes_envs:
            options["envs"] = shared_value(context, "envs")
        try:
            _refuse_control_characters()
            with named_errors("the working folder"):
                os.getcwd()  # noqa: PTH109
            settings.apply_folders()
            if takes_envs:
                folders = project_folders(context, options["envs"])
                if any(folders.change("").parent.glob("*.json")):
                    from provision.workflow.change_journal import heal_prefixes

                    heal_prefixes(folders, console)
                for note in context.meta.pop(NOTES, ()):
                    console.info(note)
            status = command(console, **options) or 0
            sys.stdout.flush()
            sys.exit(status)
        except KeyboardInterrupt:
            console.error_object(INTERRUPT, "interrupted", INTERRUPTED)
            console.warn("interrupted")
            sys.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise  # main prints it
        except Exception as error:
            system_error = error if isinstance(error, ProvisionError) else _system_error(error)
            if debug or system_error is None:
                console.error_object(type(error).__name__, str(error), 1)
                raise
            console.error(system_error)
            sys.exit(system_error.exit_code)

    return run


def _system_error(error: Exception) -> ProvisionError | None:
    """The error of the system that this is, or that it comes from, in our terms."""
    from provision.core.system_errors import from_system

    if isinstance(error, OSError):
        return from_system(error)
    if isinstance(error, MemoryError):
        return from_system(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "memory"))
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return from_system(OSError(errno.EAGAIN, str(error), "a thread"))
    return None


def _refuse_control_characters() -> None:
    """Raise InvalidSpec for a line end and its like in an option or argument: it would begin a line
    of its own in a script, a manifest or a unit. A COMMAND may hold them."""
    from provision.core.errors import InvalidSpec

    context = click.get_current_context()
    for parameter in context.command.get_params(context):
        name = parameter.name or ""
        value = context.params.get(name) or shared_value(context, name)
        if parameter.type is click.UNPROCESSED:
            continue
        for text in _texts(value):
            if _CONTROL_CHARACTERS.search(text):
                raise InvalidSpec(
                    f"{parameter.opts[0]}: {text!r} has a line end or another control character.",
                    advice="Leave it out.",
                )


def _texts(value: object) -> Iterator[str]:
    """The texts and paths in the value of a parameter."""
    if is_dataclass(value) and not isinstance(value, type):
        value = astuple(value)
    if isinstance(value, (str, Path)):
        yield str(value)
    elif isinstance(value, tuple):
        for item in value:
            yield from _texts(item)


def context_of(
    console: Console, envs: Path | None, options: Mapping[str, Any] | None = None
) -> Context:
    """The context of a command.

    Mirrors are looked up only for a command that has the options for them.
    """
    from provision.core import settings
    from provision.core.paths import default_folders
    from provision.workflow.context import Context, solver_of

    options = options or {}
    if options.get("build_env"):
        from provision.adapters.uv.build_environment import BUILD_ENV, chosen_variables

        # A variable, because uv runs below many functions.
        names = os.environ.get(BUILD_ENV, "").split()
        os.environ[BUILD_ENV] = " ".join([*names, *options["build_env"]])
        chosen_variables(os.environ)
    mirrors: Sequence[MirrorSetting] = ()
    if "mirrors" in options:
        mirrors = settings.mirror_settings(options["mirrors"])
    return Context(
        folders=default_folders(envs),
        progress=console,
        get_solver=solver_of(mirrors),
        on_smoke_line=partial(_show_smoke_line, console) if console.has_watcher else None,
    )


def _show_smoke_line(console: Console, line: str) -> None:
    """A line of a running smoke test, as wide as the terminal."""
    from provision.cli.console import NARRATIVE_INDENT
    from provision_runtime.report import table as report_table

    width = report_table.terminal_width(2)
    indent = report_table.FINDING_INDENT + 2
    if line and not line.startswith(" "):
        indent = report_table.MESSAGE_COLUMN
    for piece in report_table.wrapped(line, width - NARRATIVE_INDENT if width else None, indent):
        console.info(piece)


def confirm(question: str, lines: Sequence[str], *, yes: bool) -> bool:
    """Ask on the terminal, after these lines, which -q does not leave out.

    Raises click.UsageError where there is no terminal: a script must say --yes.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError(
            "This command asks before it removes anything, and there is no terminal. Add --yes, "
            "or --dry-run to see what it would remove."
        )
    from provision.cli.console import for_stream

    click.echo(for_stream("\n".join(lines), sys.stderr), err=True)
    return click.confirm(question, err=True)


def print_outcomes(console: Console, outcomes: Sequence[EnvironmentOutcome]) -> int:
    """Print a summary of many environments; returns 1 if any of them failed or differs."""
    from provision.cli.smoke_output import outcome_lines

    console.result("outcomes", {"environments": outcomes}, outcome_lines(outcomes))
    return int(any(outcome.exit_code for outcome in outcomes))


def run_or_print(
    console: Console,
    argv: list[str],
    env: Mapping[str, str] = os.environ,
    *,
    dry_run: bool,
) -> None:
    """Become a command, as `exec_command` does, or print it."""
    import shlex

    from provision.core.process import exec_command

    if dry_run:
        console.document("command", {"command": argv}, f"{shlex.join(argv)}\n")
        return
    exec_command(argv, env)


def print_steps(console: Console, steps: Sequence[PlanStep]) -> None:
    """Print what a command would do."""
    from provision.cli.console import output_width, wrap

    lines = []
    for step in steps:
        # The lines of one step stay together on a terminal.
        lines += wrap(f"{step.stage}: {step.would}", output_width(), indent=2)
    actions = [{"stage": step.stage, "would": step.would} for step in steps]
    console.result("plan", {"steps": actions}, lines)
