"""`provision doctor`: known faults, with what was seen and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.cluster_options import inventory_option, selection_of
from provision.cli.options import prefix_option
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.workflow.examination import DoctorRequest

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
@click.option("--explain", metavar="ID", help="Explain a finding; examine nothing.")
@click.option("--deep", is_flag=True, help="Also import torch, and wait longer for slow tools.")
@click.option("--fix", is_flag=True, help="Print commands that fix what is wrong; run none.")
@click.option(
    "--format",
    type=click.Choice(["text", "nagios"]),
    default="text",
    show_default=True,
    help="nagios: one line, and exit codes 0 to 3 (OK, WARNING, CRITICAL, UNKNOWN).",
)
@verb
def doctor(
    console: Console,
    subject: tuple[str, ...],
    envs: Path | None,
    prefix: Path | None,
    only: tuple[str, ...],
    explain: str | None,
    deep: bool,
    fix: bool,
    format: str,
    **options: Any,
) -> int:
    """Look for known faults of a machine, nodes, or a script.

    Examines GPUs, driver, packages, limits, network, disks and notebooks. Changes nothing and needs
    no root. Each finding says what was seen, what it breaks, what to do, and where that is
    documented. The exit code is 1 if there is a fault, or if something could not be examined.

    With NAME, examines that environment, too; with `script FILE`, a batch script or training
    program.

    \b
    provision doctor
    provision doctor train --on 'n[01-64]'
    provision doctor script train.sbatch
    """
    from provision.verbs.doctor import doctor as command
    from provision.verbs.doctor import output as text
    from provision.workflow import examination
    from provision_runtime.report import diagnosis

    command.check_ids([*only, *([explain] if explain else [])])
    if explain:
        console.result("doctor-explain", text.explain_json(explain), text.explain_lines(explain))
        return 0
    request = examination.DoctorRequest(only=only, is_deep=deep)
    name = _name(subject)
    is_script = subject[:1] == (SCRIPT,)
    if options["on"] is not None:
        if fix or format == "nagios" or is_script or prefix:
            raise click.UsageError(
                "--on goes with none of --fix, --format nagios, --prefix and `script`"
            )
        return _examine_nodes(console, envs, name, request, options)
    if is_script:
        document = command.examine_script(Path(subject[1]))
    else:
        document = command.examine_here(context_of(console, envs), name, prefix, request)
    if format == "nagios":
        console.result("doctor", document, diagnosis.nagios_line(document))
        return diagnosis.nagios_code(document["verdict"])
    lines = diagnosis.fix_lines(document["findings"]) if fix else text.lines(document)
    console.result("doctor", document, lines)
    return diagnosis.exit_code(document["verdict"])


def _name(subject: tuple[str, ...]) -> str | None:
    """The environment's name. Raises UsageError for too many words."""
    if subject and subject[0] == SCRIPT:
        if len(subject) != 2:
            raise click.UsageError("`script` needs one FILE: provision doctor script train.sbatch")
        return None
    if len(subject) > 1:
        raise click.UsageError(f"one NAME at most, not {len(subject)}: {' '.join(subject)}")
    return subject[0] if subject else None


def _examine_nodes(
    console: Console,
    envs: Path | None,
    name: str | None,
    request: DoctorRequest,
    options: dict[str, Any],
) -> int:
    from provision.verbs.doctor import doctor as command
    from provision.verbs.doctor import output as text

    selection = selection_of(envs, options)
    result = command.examine_nodes(context_of(console, envs), selection, name, request)
    console.result("doctor-nodes", text.nodes_json(result), text.nodes_lines(result))
    return result.exit_code
