"""The command line.

A command turns its options into a request, calls one function of its verb or of `workflow`, and
prints the result; `options.verb` turns errors into exit codes. A command imports its own verb only,
and `provision --help` imports none. docs/cli.md is generated from here, and a test compares it.
"""

from __future__ import annotations

import gc
import getpass
import importlib
import io
import json
import keyword
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import click

from provision.cli import streams
from provision.cli.completion import SHELLS
from provision.cli.other_tools import GroupWithForeignVerbs
from provision.cli.shared_options import EXIT_CODES, SHARED_OPTIONS

# Every verb, in the order of `provision --help`: its folder in provision.verbs, its section, its summary.
VERBS: dict[str, tuple[str, str, str]] = json.loads(
    Path(__file__).with_name("verbs.json").read_bytes()
)


def main() -> None:
    """The `provision` command. Ends the process itself.

    py-rattler 0.28 was seen to crash in its own clean-up at interpreter exit (SIGSEGV after correct
    results), and Python prints what it could not write. The exit code must depend on neither.
    """
    # Imports make thousands of objects that stay; collecting garbage among them costs 0.1 s of a
    # lock.
    gc.set_threshold(100_000, 50, 50)
    # When a scheduler cancels us or the terminal closes, clean up as for Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    streams.prepare()
    try:
        getpass.getuser()
    except (KeyError, OSError):  # no entry in the user database, as in a container with --user
        os.environ["LOGNAME"] = str(os.getuid())
    sys.excepthook = _print_traceback
    status = _run()
    # What a verb printed is written; this is the object of an error.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, SystemExit):
            stream.flush()
    os._exit(status)


def _print_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    import traceback

    from provision.core.credentials import without_credentials

    lines = traceback.format_exception(kind, error, trace)
    sys.stderr.write(without_credentials("".join(lines)))


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _run() -> int:
    try:
        result = cli.main(standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except click.ClickException as error:
        from provision.core.credentials import without_credentials

        output = io.StringIO()
        error.show(output)
        sys.stderr.write(without_credentials(output.getvalue()))
        _print_error_object("UsageError", error.format_message(), error.exit_code)
        return error.exit_code
    except click.exceptions.Abort:
        from provision.cli.verb import INTERRUPT, INTERRUPTED

        _print_error_object(INTERRUPT, "interrupted", INTERRUPTED)
        return INTERRUPTED
    except OSError as error:  # of a help text, say
        if "--debug" in sys.argv:
            raise
        from provision.cli.console import Console
        from provision.core.system_errors import from_system

        system_error = from_system(error)
        Console().error(system_error)
        return system_error.exit_code


def _print_error_object(kind: str, message: str, exit_code: int) -> None:
    from provision.cli.console import Console

    Console(as_json="--json" in sys.argv).error_object(kind, message, exit_code)


class VerbGroup(GroupWithForeignVerbs):
    """The verbs, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *VERBS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in VERBS:
            self._import(cmd_name)
        elif cmd_name not in self.commands:
            # click suggests the names that are similar.
            for name in VERBS:
                self._import(name)
        return super().get_command(ctx, cmd_name)

    def _import(self, name: str) -> None:
        from provision.cli.help import dressed

        if name not in self.commands:
            folder, _, _ = VERBS[name]
            attribute = f"{name}_" if keyword.iskeyword(name) else name
            module = importlib.import_module(f"provision.verbs.{folder}.command")
            command = getattr(module, attribute)
            self.add_command(dressed(command, name), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # One column for all sections.
        width = max(map(len, self.list_commands(ctx)))
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, (_, section, summary) in VERBS.items():
            sections.setdefault(section, []).append((name.ljust(width), summary))
        for name in sorted(self.commands.keys() - VERBS.keys()):
            summary = self.commands[name].get_short_help_str(formatter.width)
            sections["Other"].append((name.ljust(width), summary))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)


def _print_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from provision.cli.version import version_text

    click.echo(version_text())
    ctx.exit()


@click.group(
    cls=VerbGroup,
    params=list(SHARED_OPTIONS),
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version, and how old the facts are.",
)
def cli() -> None:
    """Build PyTorch environments: locked, installed, packed as images, tested, registered.

    \b
    provision build --torch 2.3 --cuda 12.1
    """


@cli.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a shell's completion script.

    bash: add `eval "$(provision completion bash)"` to ~/.bashrc. zsh: add the same with zsh to ~/.zshrc,
    after compinit. fish: `provision completion fish | source`.
    """
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    assert completion_class is not None
    click.echo(completion_class(cli, {}, "provision", "_PROVISION_COMPLETE").source())


@cli.command("help")
@click.argument("verb", nargs=-1, metavar="[VERB]...")
@click.option("--man", metavar="DIR", help="Write the manual pages of all verbs to DIR/man1.")
@click.pass_context
def help_(ctx: click.Context, verb: tuple[str, ...], man: str | None) -> None:
    """Show the help of a verb, like `provision VERB --help`."""
    if man is None:
        name = ctx.find_root().info_name
        cli.main([*verb, "--help"], prog_name=name, standalone_mode=False)
        return
    from provision.cli.manual import write_pages

    write_pages(ctx.find_root(), man)
    click.echo(f"man -M {man} provision")
