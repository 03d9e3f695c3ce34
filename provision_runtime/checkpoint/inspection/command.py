"""The command line of `checkpoint list|show|verify|prune`, and its answers as JSON.

Standard output gets one JSON document: the answer, or {"error": ...}. With --json it is one line,
and standard error gets progress as JSON lines, {"total": BYTES} and {"advance": BYTES}. The host's
`provision checkpoint` reads both.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from . import audit, contents, inventory
from .root import InspectionError, open_root, store_errors

# Exit codes besides argparse's 2 for usage.
FINE, DAMAGE, ERROR = 0, 1, 3
MAX_STEP_DIGITS = 18


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="checkpoint_verb", required=True, metavar="VERB")
    list_verb = verbs.add_parser("list", help="list all checkpoints with size and state")
    show_verb = verbs.add_parser("show", help="show what one checkpoint contains")
    verify_verb = verbs.add_parser("verify", help="hash every file; exit with 1 if any is damaged")
    prune_verb = verbs.add_parser("prune", help="remove old and unfinished checkpoints")
    for verb in (list_verb, show_verb, verify_verb, prune_verb):
        verb.add_argument("root", metavar="ROOT", help="the folder of the checkpoints, or its URL")
        verb.add_argument(
            "--option",
            dest="options",
            action="append",
            default=[],
            type=_option,
            metavar="KEY=VALUE",
            help="an option for fsspec, if ROOT is a URL; repeatable",
        )
        verb.add_argument(
            "--json",
            action="store_true",
            help="print JSON on one line, and progress to standard error",
        )
    for verb in (show_verb, verify_verb):
        verb.add_argument(
            "--step",
            type=_step,
            default="latest",
            metavar="N|latest",
            help="which checkpoint (default: latest)",
        )
    verify_verb.add_argument(
        "--all", dest="step", action="store_const", const=audit.ALL, help="verify all checkpoints"
    )
    prune_verb.add_argument(
        "--keep", type=_positive, metavar="N", help="keep only the last N committed steps"
    )
    prune_verb.add_argument(
        "--every", type=_positive, metavar="K", help="also keep every step that is a multiple of K"
    )
    prune_verb.add_argument(
        "--unfinished",
        action="append",
        default=[],
        metavar="NAME",
        help="also remove this unfinished folder: its writer has ended; repeatable",
    )
    prune_verb.add_argument(
        "--dry-run", action="store_true", help="show what would be removed, and remove nothing"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the answer. The exit code is 0, 1 for damage (verify) or problems (prune), or 3 for an
    error.
    """
    try:
        with store_errors(arguments.root):
            answer, code = _answer(arguments)
    except InspectionError as error:
        answer = {"kind": error.kind, "message": error.message, "advice": error.advice}
        return _print(arguments, {"error": answer}, ERROR)
    except OSError as error:
        answer = {
            "kind": "system",
            "errno": error.errno,
            "message": error.strerror or str(error),
            "filename": None if error.filename is None else str(error.filename),
        }
        return _print(arguments, {"error": answer}, ERROR)
    return _print(arguments, answer, code)


def _answer(arguments: argparse.Namespace) -> tuple[dict[str, Any], int]:
    backend = open_root(arguments.root, dict(arguments.options))
    verb = arguments.checkpoint_verb
    if verb == "list":
        return asdict(inventory.take_inventory(backend)), FINE
    if verb == "show":
        return asdict(contents.read_contents(backend, arguments.step)), FINE
    if verb == "verify":
        result = audit.audit(backend, arguments.step, _meter(arguments))
        return asdict(result), FINE if result.is_whole else DAMAGE
    pruned = inventory.clean_up(
        backend,
        arguments.keep,
        every=arguments.every,
        unfinished=arguments.unfinished,
        dry_run=arguments.dry_run,
    )
    return asdict(pruned), DAMAGE if pruned.problems else FINE


def _print(arguments: argparse.Namespace, document: dict[str, Any], code: int) -> int:
    print(json.dumps(document, indent=None if arguments.json else 1))
    return code


def _meter(arguments: argparse.Namespace) -> audit.ProgressHooks:
    if not arguments.json:
        return audit.ProgressHooks()

    def report(key: str, count: int) -> None:
        sys.stderr.write(json.dumps({key: count}) + "\n")
        sys.stderr.flush()

    return audit.ProgressHooks(
        start=lambda total: report("total", total), advance=lambda count: report("advance", count)
    )


def _option(text: str) -> tuple[str, Any]:
    """KEY=VALUE; parses a value that is JSON, so that it may be a number or an object."""
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _step(text: str) -> int | str:
    if text == "latest":
        return text
    if not (text.isascii() and text.isdecimal()) or len(text) > MAX_STEP_DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r} is neither the number of a step nor 'latest'")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)
