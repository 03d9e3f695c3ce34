"""The command line.

A command turns its options into a request, calls one function of `commands`, and prints the result;
`options.verb` turns errors into exit codes. A command imports only its own module, and `provision
--help` imports none of them. docs/cli.md is generated from here, and a test compares it.
"""

from __future__ import annotations

import contextlib
import gc
import getpass
import importlib
import io
import keyword
import os
import signal
import sys
from types import TracebackType

import click

from provision import __version__
from provision.cli import streams
from provision.cli.other_tools import GroupWithOtherWords

# Verb -> the module of provision.cli that has it, and what `provision --help` says about it.
VERBS = {
    "activate": ("ship", "Activate an environment that nodes already have."),
    "add": ("change", "Add packages to an environment."),
    "build": ("build", "Build an environment: lock, prefix, image, smoke test, kernel."),
    "channel": ("channel", "Make local conda channels and mirrors."),
    "checkpoint": ("checkpoint", "Inspect and prune the checkpoints of training jobs."),
    "clean": ("inventory", "Remove caches, and what no environment needs any more."),
    "doctor": ("doctor", "Look for known faults of a machine, nodes, or a script."),
    "drift": ("drift", "Compare nodes and name those that deviate."),
    "env": ("env", "Create, list, remove and compare environments on this machine."),
    "image": ("image", "Build, push, pull, inspect and run images of environments."),
    "join": ("join", "Join a lab: its environments, kernels, folders, and a first job."),
    "import": ("init", "Make a spec.yml from another tool's file."),
    "init": ("init", "Propose a spec.yml for this repository."),
    "jobs": ("launch", "List, read and cancel launched jobs."),
    "kernel": ("kernel", "Add, list and remove the Jupyter kernels of environments."),
    "lab": ("lab", "Write and check lab.yml, from which members join a lab."),
    "launch": ("launch", "Write a job for the nodes' own engine, and submit it."),
    "lock": ("lock", "Lock every conda and pip package by URL and hash."),
    "matrix": ("matrix", "Show which PyTorch builds exist, and what each needs."),
    "nodes": ("nodes", "List and check the nodes of a cluster."),
    "notebook": ("notebook", "Start JupyterLab for an environment, on loopback."),
    "pack": ("pack", "Pack a locked environment into one file for nodes."),
    "passport": ("report", "Show the record of what was built and measured."),
    "remove": ("change", "Remove packages from an environment."),
    "render": ("render", "Write the generated files of an environment."),
    "report": ("report", "Make an HTML report of environments and smoke tests."),
    "rollback": ("ship", "Go back to the environment that was active on nodes before."),
    "run": ("run", "Run a command in an environment."),
    "shell": ("run", "Start a shell in an environment."),
    "ship": ("ship", "Send a packed environment to nodes, verify it, and activate it."),
    "smoke": ("smoke", "Run the DDP smoke test."),
    "status": ("inventory", "Show this machine at a glance: GPUs, Docker, disk, environments."),
    "update": ("change", "Update packages of an environment, all of them if none is named."),
}

# How `provision --help` groups the verbs, the usual ones first.
SECTIONS = {
    "Start": ("build", "init", "import"),
    "Use": ("run", "shell", "notebook", "kernel"),
    "Change": ("add", "remove", "update", "lock", "render"),
    "Inspect": ("status", "env", "matrix", "passport", "report"),
    "Test": ("smoke", "doctor", "checkpoint"),
    "Images and channels": ("image", "channel"),
    "Clusters": ("nodes", "pack", "ship", "activate", "rollback", "drift", "launch", "jobs"),
    "Labs": ("join", "lab"),
    "Other": ("clean", "completion", "help"),
}


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
        with contextlib.suppress(OSError, SystemExit):
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

        shown = io.StringIO()
        error.show(shown)
        sys.stderr.write(without_credentials(shown.getvalue()))
        if "--json" in sys.argv:
            import json

            message = without_credentials(error.format_message())
            print(json.dumps({"error": "UsageError", "message": message, "advice": ""}))
        return error.exit_code
    except click.exceptions.Abort:
        from provision.cli.options import INTERRUPTED

        return INTERRUPTED
    except OSError as error:  # of a help text, say
        if "--debug" in sys.argv:
            raise
        from provision.cli.console import Console

        return Console().system_error(error)


class VerbGroup(GroupWithOtherWords):
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
            module, _ = VERBS[name]
            attribute = f"{name}_" if keyword.iskeyword(name) else name
            command = getattr(importlib.import_module(f"provision.cli.{module}"), attribute)
            self.add_command(dressed(command, name), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        summaries = {name: summary for name, (_, summary) in VERBS.items()}
        for name, command in self.commands.items():
            summaries[name] = command.get_short_help_str(formatter.width)
        # One column for all sections.
        width = max(len(name) for name in summaries)
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summaries[name]) for name in names])


@click.group(
    cls=VerbGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="provision")
def cli() -> None:
    """Build PyTorch environments: locked, installed, packed as images, tested, registered.

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


@cli.command("help")
@click.argument(
    "verb",
    nargs=-1,
    metavar="[VERB]...",
    shell_complete=lambda ctx, parameter, text: [name for name in VERBS if name.startswith(text)],
)
@click.pass_context
def help_(ctx: click.Context, verb: tuple[str, ...]) -> None:
    """Show the help of a verb, like `provision VERB --help`."""
    parent = ctx.parent
    assert parent is not None
    for name in verb:
        command = parent.command
        if not isinstance(command, click.Group):
            raise click.UsageError(f"`{parent.command_path}` has no verbs of its own.")
        try:
            _, subcommand, _ = command.resolve_command(parent, [name])
        except click.UsageError as error:
            error.ctx = parent
            raise
        assert subcommand is not None
        parent = click.Context(subcommand, parent=parent, info_name=name)
    click.echo(parent.get_help())
