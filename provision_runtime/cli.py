"""The verbs of `provision_runtime`: options in, one call, an exit code out (0 fine, 1 a check failed, 2 usage)."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from . import fs
from .facts import environment
from .smoke import launcher, options, rank_env, runner
from .smoke.checks import contamination

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.verb == "facts":
        return _facts(chosen)
    try:
        smoke_options = options.from_namespace(chosen)
        if chosen.check:
            if smoke_options.ranks is not None:
                options.check_faults(smoke_options, smoke_options.ranks)
            return 0
        return _smoke(smoke_options, arguments)
    except options.UsageError as error:
        parser.error(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="provision_runtime", description="What this environment is, and whether it works."
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    about = verbs.add_parser("facts", help="print what this environment says about itself, as JSON")
    about.add_argument(
        "--out", type=Path, metavar="FILE", help="write the JSON there instead of on stdout"
    )
    about.add_argument(
        "--in-process", action="store_true", help="import torch in this process, not in a child"
    )
    options.add_arguments(
        verbs.add_parser("smoke", help="run the DDP smoke test and write DIR/report.json")
    )
    return parser


def _facts(chosen: argparse.Namespace) -> int:
    found = environment.collect() if chosen.in_process else environment.collect_apart()
    text = json.dumps(found, indent=2, sort_keys=True) + "\n"
    if chosen.out is None:
        sys.stdout.write(text)
    else:
        fs.atomic_write(chosen.out, text.encode())
    return 1 if found["error"] else 0


def _smoke(chosen: options.Options, arguments: Sequence[str]) -> int:
    contamination.check(chosen)
    here = rank_env.from_environment()
    if here is None:
        return launcher.launch(chosen, arguments)
    if chosen.ranks not in (None, here.world_size):
        raise options.UsageError(
            f"--ranks {chosen.ranks} contradicts WORLD_SIZE={here.world_size} in the environment"
        )
    options.check_faults(chosen, here.world_size)
    if not here.launched and any(chosen.fault(kind) for kind in options.OF_THE_LAUNCHER):
        raise options.UsageError(
            f"--inject {', '.join(options.OF_THE_LAUNCHER)}: only where this program starts the ranks itself"
        )
    if chosen.fault("absent", here.rank):
        return 0
    return runner.run_rank(options.for_world(chosen, here.world_size), here)
