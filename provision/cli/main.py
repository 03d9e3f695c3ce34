"""The command line.

A command turns its options into a request, calls one function of `commands`, and prints the result;
`options.verb` turns errors into exit codes. Nothing heavy is imported at the top, so that
`provision --help` is quick. docs/cli.md is generated from here, and a test compares it.
"""

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
from provision.cli import (
    build,
    channel,
    checkpoint,
    env,
    image,
    kernel,
    lock,
    matrix,
    nodes,
    render,
    report,
    smoke,
)
from provision.cli.options import INTERRUPTED


def main() -> None:
    """The `provision` command. Ends the process itself.

    py-rattler 0.28 was seen to crash in its own clean-up at interpreter exit (SIGSEGV after correct
    results), and the exit code must not depend on that.
    """
    # Imports make thousands of objects that stay; collecting garbage among them costs 0.1 s of a
    # lock.
    gc.set_threshold(100_000, 50, 50)
    # When a scheduler cancels us or the terminal closes, clean up as for Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path may hold characters that the locale cannot encode.
            stream.reconfigure(errors="backslashreplace")
    status = _run()
    for stream in (sys.stdout, sys.stderr):
        # The reader may have left, or there may be no stream at all (None).
        if stream is not None:
            with contextlib.suppress(BrokenPipeError, ValueError):
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
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except click.ClickException as error:
        error.show()
        if "--json" in sys.argv:
            message = error.format_message()
            print(json.dumps({"error": "UsageError", "message": message, "advice": ""}))
        return error.exit_code
    except click.exceptions.Abort:
        return INTERRUPTED


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="provision")
def cli() -> None:
    """Build PyTorch environments: locked, installed, packed as images, smoke-tested, registered.

    \b
    provision build --torch 2.3 --cuda 12.1
    """


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a shell's completion script.

    For bash, add to ~/.bashrc: `eval "$(provision completion bash)"`.
    """
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    click.echo(completion_class(cli, {}, "provision", "_PROVISION_COMPLETE").source())


for command in (
    build.build,
    render.render,
    lock.lock,
    image.image,
    smoke.smoke,
    env.env,
    kernel.kernel,
    report.passport,
    channel.channel,
    matrix.matrix,
    nodes.nodes,
    report.report,
    checkpoint.checkpoint,
):
    cli.add_command(command)
