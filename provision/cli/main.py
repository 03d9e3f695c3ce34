"""Command line: options in, one workflow called, result shown, errors to exit codes. Nothing heavy is imported at the top, so
that `provision --help` is quick; docs/cli.md is generated from here and compared by a test."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import signal
import sys

import click

from provision import __version__
from provision.cli import build, checkpoint, env, image, lock, matrix, report
from provision.cli.options import INTERRUPTED


def main() -> None:
    """The `provision` command. Ends the process itself: py-rattler 0.28 was seen to crash in its own clean-up at interpreter exit
    (SIGSEGV after correct results), and the exit code must not depend on that."""
    gc.set_threshold(
        100_000, 50, 50
    )  # thousands of objects are made by imports and stay: looking through them costs 0.1 s of a lock
    for name in (
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # a scheduler's cancel and a closed terminal clean up as Ctrl-C does
        signal.signal(name, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a path may hold what the locale cannot say
    status = _run()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(
            BrokenPipeError, ValueError, AttributeError
        ):  # the reader left, or there never was one
            stream.flush()
    if "rattler" in sys.modules:
        os._exit(status)
    sys.exit(status)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _run() -> int:
    try:
        result = cli.main(standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except click.ClickException as error:
        error.show()
        if "--json" in sys.argv:
            print(
                json.dumps({"error": "UsageError", "message": error.format_message(), "advice": ""})
            )
        return error.exit_code
    except click.exceptions.Abort:
        return INTERRUPTED


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="provision")
def cli() -> None:
    """One line becomes a locked, installed, imaged, smoke-tested and registered PyTorch environment.

    \b
    provision build --torch 2.3 --cuda 12.1
    """


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a shell's completion script, for `eval "$(provision completion bash)"` in its start-up file."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "provision", "_PROVISION_COMPLETE").source())


for command in (
    build.build,
    build.render,
    lock.lock,
    image.image,
    build.smoke,
    env.env,
    env.kernel,
    env.passport,
    env.channel,
    matrix.matrix,
    report.report,
    checkpoint.checkpoint,
):
    cli.add_command(command)
