"""What verbs share: groups of options, and the wrapper that turns what a command raises into one line and an exit code."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from provision.core.spec_fields import SPEC_KEYS

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.commands.plan import BuildRequest, Context
    from provision.core.types import Outcome

F = TypeVar("F", bound=Callable[..., Any])

# 128 + the signal, as shells have it: SIGINT, SIGPIPE.
INTERRUPTED = 130
PIPE_CLOSED = 141


def options(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    return lambda command: functools.reduce(
        lambda made, decorate: decorate(made), reversed(decorators), command
    )


# What every verb takes.
shown = options(
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    click.option("-v", "--verbose", is_flag=True, help="Also show a solver's or tool's own words."),
    click.option("--debug", is_flag=True, help="Show the traceback of an error."),
)
# And every one that is about environments.
common = options(
    shown,
    click.option(
        "--envs", type=click.Path(path_type=Path), help="Folder of environments.  [default: envs]"
    ),
)
dry = click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
every = click.option(
    "--all", "every", is_flag=True, help="Every environment of the envs folder, several at a time."
)
no_wait = click.option(
    "--no-wait", is_flag=True, help="Fail if another process works on this environment."
)

# Where to fetch from; never part of a spec or a lock.
mirrored = options(
    click.option(
        "--mirror",
        "mirrors",
        multiple=True,
        metavar="WHAT=URL|DIR",
        help="Fetch a channel (by name or URL) or `pypi` from there instead; DIR, which `channel mirror` made, stands for everything.",
    ),
    click.option(
        "--channel-alias",
        "alias",
        metavar="URL",
        help="Fetch every channel that is known by its name from there: --mirror '*=URL'.",
    ),
)

SPEC_OPTIONS = tuple(key.name for key in SPEC_KEYS)

# How an image is run, beyond what its environment needs.
running = options(
    click.option(
        "--shm", "shm_gib", type=click.IntRange(1), help="GiB of shared memory.  [default: 8]"
    ),
    click.option(
        "--mount",
        "mounts",
        multiple=True,
        metavar="HOST:CONTAINER[:ro]",
        help="A folder or a named volume; several times.",
    ),
    click.option(
        "--host-network", is_flag=True, help="The host's own network, for ranks on several hosts."
    ),
    click.option(
        "--user", metavar="UID:GID", help="Run as this user.  [default: the image's, 1000:1000]"
    ),
    click.option(
        "--as",
        "reference",
        metavar="REF",
        help="What the image is called where it runs.  [default: as it was built]",
    ),
    click.argument("command", nargs=-1, type=click.UNPROCESSED),
)

serving = options(
    click.option(
        "--jupyter", is_flag=True, help="Serve notebooks instead, with a token that is made anew."
    ),
    click.option(
        "--port",
        type=click.IntRange(1, 65535),
        default=8888,
        show_default=True,
        help="Where Jupyter is reached.",
    ),
    click.option(
        "--listen",
        metavar="ADDRESS",
        default="127.0.0.1",
        show_default=True,
        help="The same; 0.0.0.0: from other machines too.",
    ),
)

testing = options(
    click.option(
        "--ranks",
        type=click.IntRange(1),
        help="Ranks of the smoke test.  [default: one per GPU; 2 without GPUs]",
    ),
    click.option(
        "--backend",
        type=click.Choice(["auto", "gloo", "nccl"]),
        default="auto",
        show_default=True,
        help="Collective backend.",
    ),
    click.option("--quick", is_flag=True, help="Smoke test: fewer sizes and iterations."),
    click.option(
        "--require-gpu",
        is_flag=True,
        help="Fail where there is no GPU instead of rehearsing on CPU.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=1),
        default=600.0,
        show_default=True,
        metavar="S",
        help="Seconds for the whole smoke test.",
    ),
)
# What only `provision smoke` asks.
testing_in_full = options(
    click.option(
        "--device",
        type=click.Choice(["auto", "cpu", "cuda"]),
        default="auto",
        show_default=True,
        help="Where the tensors are; Gloo takes those of GPUs too.",
    ),
    click.option("--full", is_flag=True, help="All collectives, types and sizes."),
    click.option(
        "--only",
        multiple=True,
        metavar="PHASE",
        help="Only this phase, after facts and rendezvous. May be repeated.",
    ),
    click.option("--skip", multiple=True, metavar="PHASE", help="Not this phase. May be repeated."),
    click.option(
        "--folder",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        metavar="DIR",
        help="Where files and checkpoints are tested: the file system that the jobs use.",
    ),
    click.option(
        "--expect",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Curves of expected bandwidth.  [default: published ones of known hardware]",
    ),
    click.option(
        "--baseline",
        type=click.Choice(["save", "compare"]),
        help="Keep this run's bandwidths, or compare with those kept.",
    ),
    click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Keep report, logs and stacks there.  [default: in the user's data folder]",
    ),
    click.option(
        "--inject",
        multiple=True,
        metavar="FAULT",
        help="Rehearse a fault, e.g. die:1:barrier; the test must then name it. An unknown one lists all.",
    ),
)
TEST_OPTIONS = (
    "ranks",
    "backend",
    "device",
    "quick",
    "full",
    "require_gpu",
    "timeout",
    "folder",
    "expect",
    "baseline",
    "out",
)
TEST_LISTS = ("only", "skip", "inject")

name_argument = click.argument("name", required=False)
prefix_option = click.option(
    "--prefix",
    type=click.Path(path_type=Path),
    help="Folder of the environment.  [default: in the user's data folder]",
)
relock_option = click.option("--relock", is_flag=True, help="Replace a lock that is there.")


def verb(command: Callable[..., int | None]) -> Callable[..., None]:
    """Give a command its Console and turn what it raises into one line and an exit code."""

    @functools.wraps(command)
    def run(*, as_json: bool, verbose: bool, debug: bool, **options: Any) -> None:
        from provision.cli.console import Console
        from provision.core.errors import ProvisionError, from_system

        console = Console(as_json=as_json, verbose=verbose or debug)
        try:
            sys.exit(command(console, **options) or 0)
        except ProvisionError as error:
            if debug:
                raise
            console.error(error)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            console.warn("interrupted; nothing half-made was left")
            sys.exit(INTERRUPTED)
        except BrokenPipeError:  # whoever read our output has what they wanted
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.exit(PIPE_CLOSED)
        except OSError as error:
            if debug:
                raise
            ours = from_system(error)
            console.error(ours)
            sys.exit(ours.exit_code)

    return run


def context_of(
    console: Console,
    envs: Path | None,
    *,
    mirrors: Sequence[str] | None = None,
    alias: str | None = None,
    wait: bool = True,
) -> Context:
    """mirrors: as given on the command line, over what is set elsewhere; None for a verb that fetches nothing."""
    from provision.adapters import conda
    from provision.commands.plan import Context, mirrors_of
    from provision.core import settings
    from provision.core.paths import default_folders

    asked = () if mirrors is None else settings.mirror_settings(mirrors, alias, os.environ)
    return Context(
        where=default_folders(envs),
        progress=console,
        solver=conda.Solver(mirrors_of(asked)),
        wait=wait,
    )


def asked(options: dict[str, Any]) -> dict[str, Any]:
    """Of a command's options, what an environment is asked to be."""
    return {key: options[key] for key in SPEC_OPTIONS if key in options}


def build_request(name: str | None, options: dict[str, Any], **more: Any) -> BuildRequest:
    from provision.commands.plan import BuildRequest
    from provision.commands.smoke_runner import SmokeRequest

    test = {key: options[key] for key in TEST_OPTIONS if key in options}
    test.update({key: tuple(options[key]) for key in TEST_LISTS if key in options})
    if "timeout" in test:
        test["timeout_s"] = test.pop("timeout")
    return BuildRequest(
        name=name, options=asked(options), smoke_request=SmokeRequest(**test), **more
    )


def requests_of_all(
    context: Context, name: str | None, options: dict[str, Any], **more: Any
) -> list[BuildRequest]:
    """--all: a wish for each environment of the envs folder. Raises InvalidSpec if one was also named or described."""
    from provision.commands.batch import named
    from provision.core.errors import InvalidSpec

    told = sorted(key for key in SPEC_OPTIONS if options.get(key) not in (None, (), [], False))
    if name or told:
        raise InvalidSpec(
            f"--all takes each environment as its spec.yml says, but {', '.join([*([name] if name else []), *told])} was given."
        )
    return [build_request(found, options, **more) for found in named(context)]


def show_outcomes(console: Console, outcomes: Sequence[Outcome]) -> int:
    """A summary table of many environments; 1 if any of them failed or differs."""
    from provision.cli.console import outcome_lines

    console.result(outcomes, outcome_lines(outcomes))
    return int(any(outcome.exit_code for outcome in outcomes))
