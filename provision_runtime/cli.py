"""The verbs of `python -m provision_runtime`.

Exit codes: 0 fine, 1 a check failed, 2 usage, 3 the checkpoints could not be read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .smoke.options import Options


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="provision_runtime",
        description="Describe this environment, test it, and manage checkpoints.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("facts", help="print facts about this environment as JSON", add_help=False)
    verbs.add_parser(
        "smoke", help="run the DDP smoke test and write DIR/report.json", add_help=False
    )
    verbs.add_parser(
        "health", help="say in one line whether this node has a measurable fault", add_help=False
    )
    verbs.add_parser("doctor", help="look for known faults of this host", add_help=False)
    verbs.add_parser(
        "checkpoint", help="list, verify, prune, export or import checkpoints", add_help=False
    )
    verbs.add_parser("digests", help="print a digest per distribution as JSON", add_help=False)
    verbs.add_parser("job", help="run one node's part of a job", add_help=False)
    # What `job` itself starts, and `provision run` in place of torchrun.
    verbs.add_parser("job-agent", add_help=False)
    verbs.add_parser("launcher", add_help=False)
    # Each verb has its own parser, so that only the modules of that verb are imported.
    run = {
        "facts": _facts,
        "smoke": _smoke,
        "health": _health,
        "doctor": _doctor,
        "checkpoint": _checkpoint,
        "digests": _digests,
        "job": _job,
        "job-agent": _job_agent,
        "launcher": _launcher,
    }
    verb = parser.parse_args(arguments[:1]).verb
    return run[verb](arguments)


def _verb_parser(arguments: Sequence[str], description: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"provision_runtime {arguments[0]}", description=description
    )


def _facts(arguments: Sequence[str]) -> int:
    from . import fs
    from .facts import environment
    from .report.credentials import public_document

    parser = _verb_parser(arguments, "Print facts about this environment as JSON.")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the JSON to FILE instead of standard output"
    )
    parser.add_argument(
        "--in-process",
        action="store_true",
        help="import torch in this process instead of a child process",
    )
    options = parser.parse_args(arguments[1:])
    facts = environment.collect() if options.in_process else environment.collect_in_child()
    text = json.dumps(public_document(facts), indent=2, sort_keys=True) + "\n"
    if options.out is None:
        sys.stdout.write(text)
    else:
        fs.atomic_write(options.out, text.encode())
    return 1 if facts["error"] else 0


def _doctor(arguments: Sequence[str]) -> int:
    from .doctor import command

    parser = _verb_parser(
        arguments,
        "Look for known faults of this host, and of an environment on it. Changes nothing. Exits"
        " with 1 if there is a fault, or something could not be examined.",
    )
    command.add_arguments(parser)
    command.end(command.run(parser.parse_args(arguments[1:])))


def _checkpoint(arguments: Sequence[str]) -> int:
    from .checkpoint.inspection import command

    parser = _verb_parser(
        arguments,
        "List, show, verify, prune, export or import a job's checkpoints. Prints JSON; only import "
        "needs torch.",
    )
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments[1:]))


def _digests(arguments: Sequence[str]) -> int:
    from .facts import digests

    parser = _verb_parser(arguments, "Print a digest per distribution of an environment as JSON.")
    parser.add_argument("prefix", metavar="PREFIX", help="the environment's folder")
    parser.add_argument("--deep", action="store_true", help="read every byte")
    options = parser.parse_args(arguments[1:])
    answer = digests.prefix_digests(options.prefix, options.deep)
    sys.stdout.write(json.dumps(answer, indent=1) + "\n")
    return 0


def _job(arguments: Sequence[str]) -> int:
    from .job import command, detach, node

    parser = _verb_parser(
        arguments,
        "Run one node's part of a job: find the other nodes, compare facts, start the ranks.",
    )
    command.add_arguments(parser)
    namespace = parser.parse_args(arguments[1:])
    options = command.options_of(parser, namespace)
    if namespace.folder:
        try:
            os.chdir(namespace.folder)
        except OSError as error:
            parser.error(f"{namespace.folder}: {error.strerror}")
    if namespace.detach:
        return detach.run_detached(options.id, options.node, lambda: node.run(options))
    return node.run(options)


def _job_agent(arguments: Sequence[str]) -> int:
    from .job import agent

    agent.run(int(arguments[1]), int(arguments[2]), arguments[3])
    return 0


def _launcher(arguments: Sequence[str]) -> int:
    from .job import agent, command

    parser = _verb_parser(arguments, "Run a launcher of ranks, such as torchrun.")
    command.add_hang_arguments(parser)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments[1:])
    agent.run_launcher(options.command, options.hang_after_s, options.on_hang)
    return 0


def _health(arguments: Sequence[str]) -> int:
    from .smoke import health
    from .smoke.options import PHASES

    parser = _verb_parser(
        arguments,
        "Print `pass`, `fail ID MESSAGE` for a measured fault of this node, or `unknown MESSAGE`.",
    )
    parser.add_argument(
        "--deadline",
        type=float,
        default=health.DEADLINE_S,
        metavar="S",
        help="seconds for all of it (default: %(default)g)",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=PHASES,
        metavar="PHASE",
        help="run this phase of the smoke test (repeatable; default: facts)",
    )
    options = parser.parse_args(arguments[1:])
    print(health.check(options.deadline, options.only or health.PHASES), flush=True)
    return 0


def _smoke(arguments: Sequence[str]) -> int:
    from .smoke import options as smoke_options

    parser = _verb_parser(arguments, "Run the DDP smoke test and write DIR/report.json.")
    smoke_options.add_arguments(parser)
    namespace = parser.parse_args(arguments[1:])
    try:
        return _run_smoke(smoke_options.from_namespace(namespace), arguments)
    except smoke_options.UsageError as error:
        parser.error(str(error))


def _run_smoke(options: Options, arguments: Sequence[str]) -> int:
    """Starts the ranks, or runs as one of them if a launcher has set RANK and WORLD_SIZE."""
    from .smoke import launcher, rank_env, runner
    from .smoke import options as smoke_options

    env = rank_env.from_environment()
    if env is None:
        return launcher.launch(options, arguments)
    if options.ranks not in (None, env.world_size):
        raise smoke_options.UsageError(
            f"--ranks {options.ranks} contradicts WORLD_SIZE={env.world_size} in the environment"
        )
    smoke_options.check_faults(options, env.world_size)
    launcher_faults = smoke_options.LAUNCHER_FAULTS
    if not env.launched and any(options.fault(kind) for kind in launcher_faults):
        raise smoke_options.UsageError(
            f"--inject {', '.join(launcher_faults)} works only "
            "if this program starts the ranks itself"
        )
    if options.fault("absent", env.rank):
        return 0
    return runner.run_rank(smoke_options.for_world(options, env.world_size), env)
