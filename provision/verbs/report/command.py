"""`provision passport` and `provision report`: the record of what was built and measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from provision.cli.options import output_file_option
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.core.documents import DriftRecord
    from provision.report import Page
    from provision.verbs.report.lab import LabReport


@click.group()
def passport() -> None:
    """Show the record of what was built and measured."""


@passport.command("show")
@click.argument("name")
@verb
def show(console: Console, name: str, envs: Path | None) -> None:
    """Show a passport: request, reasons, lock, image, smoke verdicts."""
    from provision.cli.console import output_width
    from provision.core.paths import default_folders
    from provision.verbs.report.output import passport_lines
    from provision.workflow.passport import judged_passport

    document = judged_passport(default_folders(envs), name)
    lines = passport_lines(document, width=output_width())
    console.result("passport-show", document, lines)


@passport.command("sign")
@click.argument("name")
@click.argument("key", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@verb
def sign(console: Console, name: str, key: Path, envs: Path | None) -> None:
    """Sign a passport as it is now, with an ssh key.

    Writes passport.json.sig next to it, as `ssh-keygen -Y sign` does. KEY may be a public key that
    the ssh agent has.
    """
    from provision.core.paths import default_folders
    from provision.verbs.report import signature as command

    path = command.sign(default_folders(envs), name, key)
    console.result("passport-sign", {"signature": path}, [f"signed: {path}"])


@passport.command("verify")
@click.argument("target", metavar="PASSPORT")
@click.option(
    "--signers",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=(
        "Who may sign: a file in ssh-keygen's ALLOWED SIGNERS format.  [default: "
        "`allowed_signers` of lab.yml]"
    ),
)
@verb
def verify(console: Console, target: str, signers: Path | None, envs: Path | None) -> None:
    """Say who signed a passport.

    PASSPORT is an environment, or a passport.json with its passport.json.sig. The exit code is 7 if
    no permitted key signed it, or if it changed afterwards.
    """
    from provision.core.paths import default_folders
    from provision.verbs.report import signature as command

    path, signer = command.verify(default_folders(envs), target, signers)
    console.result(
        "passport-verify", {"passport": path, "signer": signer}, [f"{path}: signed by {signer}"]
    )


@click.command()
@click.argument("targets", metavar="[PASSPORT...]", nargs=-1)
@click.option(
    "--nodes",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw nodes and facts instead: FILE is what `provision drift --output FILE` wrote.",
)
@output_file_option
@click.option("--force", is_flag=True, help="Replace a file that provision did not make.")
@verb
def report(
    console: Console,
    targets: tuple[str, ...],
    nodes: Path | None,
    envs: Path | None,
    output: Path | None,
    force: bool,
) -> None:
    """Make an HTML report of environments and smoke tests.

    It shows what was built and why, and what was measured.

    PASSPORT is an environment with a passport, a passport.json, or the report.json of a smoke
    test, from any machine. Without PASSPORT, the page shows everything that this machine has
    recorded; files that `provision report --json` printed add other machines. The page works offline. --json prints its content. The exit code is 0
    even if a verdict is fail.

    \b
    Environments, nodes, jobs and members of a lab:
    provision report -o lab.html
    The same environment on two nodes:
    provision report node1/passport.json node2/passport.json -o report.html
    Nodes that were compared:
    provision report --nodes drift.json -o drift.html
    """
    import sys

    from provision import render
    from provision import report as pages
    from provision.core.paths import default_folders
    from provision.verbs.report import report as command
    from provision.verbs.report.lab import is_lab_record, lab_report
    from provision.verbs.report.lab_page import page_values

    if nodes and targets:
        raise click.UsageError("Name passports, or a file with --nodes.")
    content: Page | DriftRecord | LabReport
    if nodes:
        name, template = "drift", render.NODES_REPORT
        content = pages.load_nodes(nodes)
        values = pages.nodes_values(content)
    elif not targets or is_lab_record(Path(targets[0])):
        name, template = "report-lab", render.LAB_REPORT
        content = lab_report(context_of(console, envs), [Path(target) for target in targets])
        values = page_values(content)
    else:
        name, template = "report", render.REPORT
        content = command.gather(default_folders(envs), targets)
        values = pages.template_values(content)
    text = render.render_report(template, values, remake=["provision", *sys.argv[1:]])
    if output is None:
        console.document(name, content, text)
        return
    command.write(output, text, force=force)
    console.result(name, content, f"wrote {output}: {values['headline']}")
