"""`provision report`: evidence in, a page out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from provision.cli.options import common, verb

if TYPE_CHECKING:
    from provision.cli.console import Console


@click.command()
@click.argument("targets", metavar="PASSPORT...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write the page there.  [default: show it]",
)
@click.option("--force", is_flag=True, help="Replace a file that provision did not make.")
@common
@verb
def report(
    console: Console, targets: tuple[str, ...], envs: Path | None, output: Path | None, force: bool
) -> None:
    """One HTML page of what environments are, why, and what was measured of them. Of several, also how they differ.

    PASSPORT is an environment of the envs folder, a passport.json, or the report.json that a smoke test left, from any machine. The page
    needs no network. --json prints what it says. The exit code tells whether the page could be made, not what it says.

    \b
    The same environment on two nodes:
    provision report node1/passport.json node2/passport.json -o report.html
    """
    from provision.commands import report as workflow
    from provision.core.paths import default_folders

    page = workflow.gather(default_folders(envs).envs, targets)
    remake = [
        "provision",
        "report",
        *targets,
        *(["--envs", str(envs)] if envs else []),
        *(["-o", str(output)] if output else []),
    ]
    text = workflow.written(page, remake) if output or not console.as_json else ""
    if output is not None:
        workflow.write(output, text, force=force)
    runs = f"{len(page.measurements)} {'run' if len(page.measurements) == 1 else 'runs'} of the smoke test"
    console.result(
        page,
        f"wrote {output}: {page.title}, {page.verdict}, {runs}" if output else text.rstrip("\n"),
    )
