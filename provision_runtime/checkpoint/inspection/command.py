"""The command line of `checkpoint list|show|verify|prune|export|import` where provision is not installed.

Prints the result as JSON. `provision checkpoint` calls the same functions.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..export import DTYPES, SHARD_GB, ExportOptions
from . import audit, contents, inventory, transfer
from .root import InspectionError, opened

if TYPE_CHECKING:
    from ..backends import Backend

# Exit codes besides argparse's 2 for usage.
FINE, DAMAGE, ERROR = 0, 1, 3
MAX_STEP_DIGITS = 18


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="checkpoint_verb", required=True, metavar="VERB")
    list_verb = verbs.add_parser("list", help="list all checkpoints with size and state")
    show_verb = verbs.add_parser("show", help="show what one checkpoint contains")
    verify_verb = verbs.add_parser("verify", help="hash every file; exit with 1 if any is damaged")
    prune_verb = verbs.add_parser("prune", help="remove old and unfinished checkpoints")
    export_verb = verbs.add_parser("export", help="write the tensors as files of safetensors")
    import_verb = verbs.add_parser("import", help="save files of torch or safetensors as a step")
    import_verb.add_argument("source", help="the file or folder to read")
    for verb in (list_verb, show_verb, verify_verb, prune_verb, export_verb, import_verb):
        verb.add_argument("root", metavar="ROOT", help="the folder of the checkpoints, or its URL")
        verb.add_argument(
            "--option",
            dest="options",
            action="append",
            default=[],
            type=parse_option,
            metavar="KEY=VALUE",
            help="an option for fsspec, if ROOT is a URL; repeatable",
        )
    for verb in (show_verb, verify_verb, export_verb):
        verb.add_argument(
            "--step",
            type=parse_step,
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
    export_verb.add_argument("--safetensors", required=True, help="the new folder for the files")
    export_verb.add_argument(
        "--part",
        default="",
        metavar="NAME",
        help="only what is below NAME, without it in the names",
    )
    export_verb.add_argument("--dtype", choices=DTYPES, help="the type of all tensors of floats")
    export_verb.add_argument(
        "--shard-size",
        type=float,
        default=SHARD_GB,
        help="begin another file at this size (default: %(default)g)",
    )
    import_verb.add_argument(
        "--step",
        type=lambda text: int(parse_step(text)),
        required=True,
        metavar="N",
        help="the number of the step",
    )
    import_verb.add_argument(
        "--allow-pickle",
        action="store_true",
        help="unpickle objects, which can run code: only if you trust the author",
    )
    for verb in (export_verb, import_verb):
        verb.add_argument(
            "--rename",
            action="append",
            default=[],
            type=transfer.parse_rename,
            metavar="PATTERN=REPLACEMENT",
            help="change names as Python's re.sub does; repeatable, in order",
        )


def run(arguments: argparse.Namespace) -> int:
    """Prints the result. The exit code is 0, 1 for damage (verify) or problems (prune), or 3 for an
    error.
    """
    try:
        if arguments.checkpoint_verb in ("export", "import"):
            result, code = _transfer(arguments), FINE
        else:
            with opened(arguments.root, dict(arguments.options)) as backend:
                result, code = _inspect(backend, arguments)
    except InspectionError as error:
        print(f"error: {error.message} {error.advice}".rstrip(), file=sys.stderr)
        return ERROR
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror or error}", file=sys.stderr)
        return ERROR
    print(json.dumps(asdict(result), indent=1))
    return code


def _inspect(backend: Backend, arguments: argparse.Namespace) -> tuple[Any, int]:
    """The result, which is a dataclass, and the exit code."""
    verb = arguments.checkpoint_verb
    if verb == "list":
        return inventory.take_inventory(backend), FINE
    if verb == "show":
        return contents.read_contents(backend, arguments.step), FINE
    if verb == "verify":
        verdicts = audit.audit(backend, arguments.step)
        return verdicts, FINE if verdicts.is_whole else DAMAGE
    cleanup = inventory.clean_up(
        backend,
        arguments.keep,
        every=arguments.every,
        unfinished=arguments.unfinished,
        dry_run=arguments.dry_run,
    )
    return cleanup, DAMAGE if cleanup.problems else FINE


def _transfer(arguments: argparse.Namespace) -> Any:
    """The result, which is a dataclass."""
    options = dict(arguments.options)
    if arguments.checkpoint_verb == "import":
        return transfer.import_step(
            arguments.source,
            arguments.root,
            options,
            arguments.step,
            arguments.rename,
            arguments.allow_pickle,
        )
    chosen = ExportOptions(arguments.part, arguments.rename, arguments.dtype, arguments.shard_size)
    return transfer.export_step(
        arguments.root, options, arguments.step, arguments.safetensors, chosen
    )


def parse_option(text: str) -> tuple[str, object]:
    """KEY=VALUE; parses a value that is JSON, so that it may be a number or an object."""
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE.")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def parse_step(text: str) -> int | str:
    """The number of a step, or `latest`."""
    if text == "latest":
        return text
    if not (text.isascii() and text.isdecimal()) or len(text) > MAX_STEP_DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r} is neither the number of a step nor `latest`.")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)
