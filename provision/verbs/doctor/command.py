"""`provision doctor`: known faults, each with its evidence and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.cluster_options import inventory_option, selection_of
from provision.cli.options import prefix_option
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console

SCRIPT = "script"


@click.command()
@click.argument("subject", nargs=-1, metavar="[NAME | script FILE]")
@prefix_option
@click.option(
    "--on",
    metavar="NODES",
    help=(
        "Examine these nodes: a group of nodes.yml, a node set (`n[1-4]`), `slurm:PARTITION` or "
        "`ssh:HOST,...`.  [default: this machine]"
    ),
)
@inventory_option
@click.option("--only", multiple=True, metavar="ID", help="Look only for this finding. Repeatable.")
@click.option("--fix", is_flag=True, help="Print commands that fix what is wrong; run none.")
@verb
def doctor(
    console: Console,
    subject: tuple[str, ...],
    envs: Path | None,
    prefix: Path | None,
    only: tuple[str, ...],
    fix: bool,
    **options: Any,
) -> int:
    """Look for known faults of a machine, nodes, or a script.

    Examines GPUs, driver, packages, limits, network, disks and notebooks. Changes nothing and needs
    no root. Each finding says what was seen, what it breaks, what to do, and where that is
    documented. The exit code is 1 if there is a fault, or if something could not be examined.

    With NAME, examines the files of that environment, too (`provision smoke NAME --set only=facts` also
    imports its torch); with `script FILE`, a batch script or training
    program.

    \b
    provision doctor
    provision doctor train --on 'n[01-64]'
    provision doctor script train.sbatch
    """
    from provision.core.errors import InvalidSpec
    from provision.verbs.doctor import doctor as command
    from provision.verbs.doctor import output as text
    from provision_runtime.report import diagnosis
    from provision_runtime.report.findings import CATALOG
    from provision_runtime.report.table import terminal_width

    for id in only:
        if id not in CATALOG:
            raise InvalidSpec(
                f"There is no finding `{id}`.", advice="docs/findings.md lists all of them."
            )
    is_script = subject[:1] == (SCRIPT,)
    if len(subject) > 1 + is_script or subject == (SCRIPT,):
        raise click.UsageError(f"write one NAME, or `script FILE`, not `{' '.join(subject)}`")
    script = Path(subject[1]) if is_script else None
    name = subject[0] if subject else None
    if options["on"] is not None:
        if fix or script or prefix:
            raise click.UsageError("--on cannot be combined with --fix, --prefix or `script`")
        nodes = command.examine_nodes(
            context_of(console, envs), selection_of(envs, options), name, only
        )
        console.result(
            "doctor-nodes",
            {"nodes": nodes.diagnoses, "failures": nodes.failures},
            text.nodes_lines(nodes),
        )
        return nodes.exit_code
    if script:
        result = command.examine_script(script)
    else:
        result = command.examine_here(context_of(console, envs), name, prefix, only)
    lines = diagnosis.lines(result, terminal_width())
    if fix:
        lines = diagnosis.fix_lines(result["findings"])
    console.result("doctor", result, lines)
    return diagnosis.exit_code(result["verdict"])
