"""The command line of `checkpoint list|show|verify|prune|export|import` where provision is not installed.

Prints the result as JSON. `provision checkpoint` has the same verbs and options (verbs.json) and calls
the same functions.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any, Callable, Dict

from ...dataclass import frozen
from ...report.codec import packaged_json
from ...report.options import Option, add_options
from ..errors import CheckpointError, DamagedFile, NoCheckpoint
from ..export import DTYPES, ExportOptions
from . import audit, contents, inventory, transfer
from .root import InspectionError, opened

# Exit codes besides argparse's 2 for usage.
FINE, DAMAGE, ERROR = 0, 1, 3
MAX_STEP_DIGITS = 18
SEE_OTHERS = "`provision checkpoint list` shows the others; `checkpoint verify --all` checks them."


@frozen
class Verb:
    name: str
    help: str
    arguments: list[str]
    options: list[Option]


@lru_cache(maxsize=1)
def verbs() -> list[Verb]:
    table = packaged_json(__package__, "verbs.json")
    options = {name: Option(**{"name": name, **row}) for name, row in table["options"].items()}
    return [
        Verb(name, row["help"], row["arguments"], [options[key] for key in row["options"]])
        for name, row in table["verbs"].items()
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parsers = parser.add_subparsers(dest="checkpoint_verb", required=True, metavar="VERB")
    for verb in verbs():
        inner = parsers.add_parser(verb.name, help=verb.help.partition("\n")[0])
        for name in verb.arguments:
            inner.add_argument(name, metavar=name.upper())
        add_options(inner, verb.options, PARSERS)


def run(arguments: argparse.Namespace) -> int:
    """Prints the result. The exit code is 0, 1 for damage (verify) or problems (prune), or 3 for an
    error.
    """
    try:
        result, has_problems = perform(arguments.checkpoint_verb, vars(arguments))
    except CheckpointError as error:
        message, advice, _ = describe(arguments.checkpoint_verb, error)
        print(f"error: {message} {advice}".rstrip(), file=sys.stderr)
        return ERROR
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror or error}", file=sys.stderr)
        return ERROR
    print(json.dumps(asdict(result), indent=1))
    return DAMAGE if has_problems else FINE


def perform(
    verb: str, arguments: Mapping[str, Any], start_meter: audit.StartMeter = audit.no_meter
) -> tuple[Any, bool]:
    """The result, which is a dataclass, and whether it has damage or problems.

    arguments: by the names of the table. Raises CheckpointError, OSError.
    """
    root, step = arguments["root"], arguments.get("step", "latest")
    if verb == "import":
        source, rename = arguments["source"], arguments["rename"]
        is_trusted = arguments["allow_pickle"]
        return transfer.import_step(source, root, step, rename, is_trusted), False
    if verb == "export":
        chosen = ExportOptions(*(arguments[name] for name in ("part", "rename", "dtype")))
        return transfer.export_step(root, step, arguments["safetensors"], chosen), False
    storage = opened(root)
    if verb == "list":
        return inventory.take_inventory(storage), False
    if verb == "show":
        return contents.read_contents(storage, step), False
    if verb == "verify":
        verdicts = audit.audit(storage, audit.ALL if arguments["all"] else step, start_meter)
        return verdicts, not verdicts.is_whole
    names = ("keep", "every", "dry_run")
    cleanup = inventory.clean_up(storage, **{name: arguments[name] for name in names})
    return cleanup, bool(cleanup.problems)


def describe(verb: str, error: CheckpointError) -> tuple[str, str, bool]:
    """What happened, what to do next, and whether a checkpoint is damaged."""
    text = f"{error}.".replace("allow_pickle=True", "--allow-pickle")
    if isinstance(error, InspectionError):
        return text, error.advice, False
    if isinstance(error, DamagedFile) or (verb == "show" and not isinstance(error, NoCheckpoint)):
        return text, SEE_OTHERS, True
    return text, "", False


def parse_step(text: str) -> int | str:
    """The number of a step, or `latest`."""
    if text == "latest":
        return text
    if not (text.isascii() and text.isdecimal()) or len(text) > MAX_STEP_DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r} is neither the number of a step nor `latest`.")
    return int(text)


def _number(least: int, text: str) -> int:
    if not text.isdecimal() or len(text) > MAX_STEP_DIGITS or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more.")
    return int(text)


def _dtype(text: str) -> str:
    if text not in DTYPES:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(DTYPES)}.")
    return text


PARSERS: Dict[str, Callable[[str], Any]] = {
    "text": str,
    "step": parse_step,
    "number": partial(_number, 0),
    "count": partial(_number, 1),
    "rename": transfer.parse_rename,
    "dtype": _dtype,
}
