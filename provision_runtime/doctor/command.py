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
        "--only", action="append", metavar="ID", help="look only for this finding (repeatable)"
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
    for finding_id in options.only or ():
        if finding_id not in CATALOG:
            print(f"there is no finding {finding_id}; docs/findings.md lists all", file=sys.stderr)
            return USAGE
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
    diagnosis = runner.diagnose(examined, catalog.select(examined, only))
    if only:
        ids = {*only, "probe-late", "probe-failed"}
        diagnosis["findings"] = [item for item in diagnosis["findings"] if item["id"] in ids]
        diagnosis["verdict"] = reports.verdict_of(diagnosis["findings"])
    return diagnosis


def examine_script(path: Path) -> reports.Diagnosis:
    """The diagnosis of a batch script or training program."""

    def run(host: machine.Machine) -> list[reports.ObservedFinding]:
        version = host.run("srun", "--version")
        return scripts.examine(path, version.text if version else None)

    probe = Probe("script", tuple(BY_AREA["scripts"]), run, deadline_s=SCRIPT_S)
    diagnosis = runner.diagnose(machine.this_machine(), [probe])
    diagnosis["host"] = path.name
    return diagnosis


def end(status: int) -> NoReturn:
    """End the process without waiting for what hangs."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
