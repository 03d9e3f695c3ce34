"""The verb `doctor`: its options, its output and exit codes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..report import diagnosis as reports
from ..report.credentials import public_document
from ..report.findings import BY_AREA, CATALOG
from ..report.table import terminal_width
from . import catalog, machine, runner, scripts
from .packages import TORCH_FILE
from .probe import Probe

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

USAGE = 2
SCRIPT_S = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prefix", metavar="DIR", help="also examine this environment (default: this Python's)"
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="ID",
        choices=CATALOG,
        help="look only for this finding (repeatable)",
    )
    parser.add_argument(
        "--peers", action="store_true", help="jobs of this host run on several hosts together"
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print the result as JSON")
    output.add_argument(
        "--fix", action="store_true", help="print the commands that repair faults; run none"
    )
    parser.add_argument(
        "--script", type=Path, metavar="FILE", help="examine a batch script or program instead"
    )
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="examine the files and tools below DIR instead"
    )


def run(options: argparse.Namespace) -> int:
    """Prints the report. The caller must end the process with os._exit: a probe may hang in the
    kernel."""
    if options.prefix and options.root is None and not os.path.isdir(options.prefix):
        print(f"there is no folder {options.prefix}", file=sys.stderr)
        return USAGE
    if options.script:
        diagnosis = examine_script(options.script)
    else:
        diagnosis = examine(options.prefix, options.only or (), options.peers, options.root)
    document: reports.Diagnosis = public_document(diagnosis)
    if options.json:
        print(json.dumps(document, indent=1))
    elif options.fix:
        print("\n".join(reports.fix_lines(document["findings"])))
    else:
        print("\n".join(reports.lines(document, terminal_width())))
    return reports.exit_code(document["verdict"])


def examine(
    prefix: str | None, only: Sequence[str], has_peers: bool, root: Path | None = None
) -> reports.Diagnosis:
    """prefix: "" for none, None for that of this Python. only: ids of findings; empty for all."""
    if root is None:
        if prefix is None and any(Path(sys.prefix).glob(TORCH_FILE)):
            prefix = sys.prefix  # else it is the system's Python
        examined = machine.this_machine(prefix or None, has_peers)
    else:
        examined = machine.captured_machine(root.absolute(), prefix, has_peers)
    return runner.diagnose(examined, catalog.select(examined, only), only or CATALOG)


def examine_script(path: Path) -> reports.Diagnosis:
    """The diagnosis of a batch script or training program."""

    def run(host: machine.Machine) -> list[reports.ObservedFinding]:
        return scripts.examine(path, host.text("srun", "--version"))

    diagnosis = runner.diagnose(
        machine.this_machine(),
        [Probe("script", tuple(BY_AREA["scripts"]), run, deadline_s=SCRIPT_S)],
    )
    diagnosis["host"] = path.name
    return diagnosis


def end(status: int) -> NoReturn:
    """End the process without waiting for what hangs."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
