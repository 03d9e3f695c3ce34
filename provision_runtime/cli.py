"""The verbs of `python -m provision_runtime`.

Exit codes: 0 fine, 1 a check failed, 2 usage, 3 the checkpoints could not be read.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="provision_runtime",
        description="Describe this environment, test it, and manage checkpoints.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, (_, text) in VERBS.items():
        if text:
            verbs.add_parser(name, help=text, add_help=False)
        else:
            verbs.add_parser(name, add_help=False)
    verb = parser.parse_args(arguments[:1]).verb
    run, text = VERBS[verb]
    # Each verb has its own parser, so that only the modules of that verb are imported.
    return run(
        argparse.ArgumentParser(prog=f"provision_runtime {verb}", description=text), arguments
    )


def _facts(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    from .facts import environment
    from .report.credentials import public_document

    parser.add_argument(
        "--in-process",
        action="store_true",
        help="import torch in this process instead of a child process",
    )
    options = parser.parse_args(arguments[1:])
    facts = environment.collect() if options.in_process else environment.collect_in_child()
    print(json.dumps(public_document(facts), indent=2, sort_keys=True))
    return 1 if facts["error"] else 0


def _doctor(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    from .doctor import command

    command.add_arguments(parser)
    command.end(command.run(parser.parse_args(arguments[1:])))


def _checkpoint(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    from .checkpoint.inspection import command

    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments[1:]))


def _digests(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    from .facts import digests

    parser.add_argument("prefix", metavar="PREFIX", help="the environment's folder")
    parser.add_argument("--deep", action="store_true", help="read every byte")
    options = parser.parse_args(arguments[1:])
    print(json.dumps(digests.prefix_digests(options.prefix, options.deep), indent=1))
    return 0


def _job(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    from .job import command, detach, node

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


def _job_agent(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    from .job import agent

    agent.run(int(arguments[1]), int(arguments[2]), arguments[3])
    return 0


def _launcher(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    from .job import agent, command

    command.add_hang_arguments(parser)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments[1:])
    agent.run_launcher(options.command, options.hang_after_s, options.on_hang)
    return 0


def _health(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    from .smoke import health

    parser.add_argument(
        "--deadline",
        type=float,
        default=health.DEADLINE_S,
        metavar="S",
        help="seconds for all of it (default: %(default)g)",
    )
    options = parser.parse_args(arguments[1:])
    print(health.check(options.deadline), flush=True)
    return 0


def _smoke(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Starts the ranks, or runs as one of them if a launcher has set RANK and WORLD_SIZE."""
    from .smoke import launcher, rank_env, runner
    from .smoke import options as smoke_options

    smoke_options.add_arguments(parser)
    namespace = parser.parse_args(arguments[1:])
    try:
        options = smoke_options.from_namespace(namespace)
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
    except smoke_options.UsageError as error:
        parser.error(str(error))


# What runs each verb, and its help. The last two have none: `job` and `provision run` start them.
VERBS: dict[str, tuple[Callable[[argparse.ArgumentParser, Sequence[str]], int], str]] = {
    "facts": (_facts, "Print facts about this environment as JSON."),
    "smoke": (_smoke, "Run the DDP smoke test and write DIR/report.json."),
    "health": (
        _health,
        "Print `pass`, `fail ID MESSAGE` for a measured fault of this node, or `unknown MESSAGE`.",
    ),
    "doctor": (
        _doctor,
        "Look for known faults of this host, and of an environment on it. Changes nothing. Exits "
        "with 1 if there is a fault, or something could not be examined.",
    ),
    "checkpoint": (
        _checkpoint,
        "List, show, verify, prune, export or import a job's checkpoints. Prints JSON; only import "
        "needs torch.",
    ),
    "digests": (_digests, "Print a digest per distribution of an environment as JSON."),
    "job": (
        _job,
        "Run one node's part of a job: find the other nodes, compare facts, start the ranks.",
    ),
    "job-agent": (_job_agent, ""),
    "launcher": (_launcher, ""),
}
