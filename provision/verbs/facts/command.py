"""`provision facts`: the facts that decide which build a request gets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import dry_run_option, mirror_option
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console

signers_option = click.option(
    "--signers",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Who may sign the facts: a file in ssh-keygen's ALLOWED SIGNERS format.",
)


@click.group()
def facts() -> None:
    """Show, update and check the facts about releases and hardware."""


@facts.command("show")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the facts to this file, for others to use.",
)
@verb
def show(console: Console, envs: Path | None, output: Path | None) -> None:
    """Show which facts are in use, and how old they are."""
    from provision.catalog.facts import facts_text
    from provision.cli.console import output_width
    from provision.core.atomic import atomic_write
    from provision.verbs.facts.facts import show
    from provision.verbs.facts.output import summary_lines

    summary = show(context_of(console, envs))
    if output is not None:
        atomic_write(output, facts_text())
        console.info(f"wrote {output}")
    console.result("facts", summary, summary_lines(summary, output_width()))


@facts.command("update")
@click.argument("address", default="", metavar="[ADDRESS]")
@signers_option
@click.option(
    "--from-index",
    is_flag=True,
    help="Read releases that the facts do not have from the package index.",
)
@click.option("--allow-older", is_flag=True, help="Take facts that are older than those in use.")
@mirror_option
@dry_run_option
@verb
def update(console: Console, envs: Path | None, mirrors: tuple[str, ...], **options: Any) -> None:
    """Get newer facts, and use them from now on.

    ADDRESS is where facts.json is: an https or file URL, oci://HOST/NAME:TAG or a path; by default, the
    lab's. A signature, or `#sha256=HASH` at its end, must prove that they are genuine.
    """
    from provision.verbs.facts.facts import update
    from provision.verbs.facts.output import update_lines

    if options["from_index"] and options["address"]:
        raise click.UsageError("ADDRESS and --from-index are two sources; name one.")
    result = update(context_of(console, envs, {"mirrors": mirrors}), **options)
    console.result("facts-update", result, update_lines(result))


@facts.command("check")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@signers_option
@verb
def check(console: Console, envs: Path | None, file: Path | None, signers: Path | None) -> int:
    """Check the facts in use and a lab's facts.yml, or FILE before it is published.

    The exit code is 1 if one is not valid.
    """
    from provision.verbs.facts.facts import check
    from provision.verbs.facts.output import check_lines

    checks = check(context_of(console, envs), file, signers)
    console.result("facts-check", {"checks": checks}, check_lines(checks))
    return int(any(check.verdict == "fail" for check in checks))
