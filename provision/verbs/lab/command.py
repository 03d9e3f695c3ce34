"""`provision lab`: a lab's repository, for its administrator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from provision.cli.options import dry_run_option
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console

folder_argument = click.argument(
    "folder", required=False, default=".", type=click.Path(path_type=Path, file_okay=False)
)


@click.group()
def lab() -> None:
    """Write and check lab.yml, from which members join a lab."""


@lab.command("init")
@folder_argument
@click.option("--name", metavar="NAME", help="Name of the lab.  [default: the folder's]")
@dry_run_option
@verb
def init(console: Console, folder: Path, name: str | None, dry_run: bool) -> None:
    """Write a first lab.yml, with comments, from this machine's configuration.

    Finds Slurm's partitions and kinds of nodes (for nodes.yml), the mirrors that conda, pip and uv
    are set to, file systems for large files, this host's ssh keys, and the environments in envs.
    Leaves out logins in addresses. Run it on a login host, then edit the file.

    \b
    provision lab init --name vision
    """
    from provision.verbs.lab import check as command

    files = command.draft_lab(folder.absolute(), console, name)
    texts = {str(path): text for path, text in files.texts.items()}
    document = {"files": texts, "existing": files.existing, "dry_run": dry_run}
    if dry_run:
        lines = [f"# {path}\n{text}" for path, text in texts.items()]
        console.result("lab-init", document, lines)
        return
    command.write_draft(files)
    lines = [f"wrote {path}" for path in texts]
    lines += [f"kept {path}, which exists" for path in files.existing]
    lines.append("next: edit lab.yml, then provision lab check")
    console.result("lab-init", document, lines)


@lab.command("check")
@folder_argument
@click.option(
    "--probe", is_flag=True, help="Also log in to the lab's hosts, and ask registries for images."
)
@verb
def check(console: Console, folder: Path, probe: bool) -> int:
    """Check a lab's repository: lab.yml, nodes.yml, environments and locks, runners.yml.

    For the lab's CI: the exit code is 1 if something is wrong. Contacts no host without --probe.
    """
    from provision.verbs.lab import check as command
    from provision.verbs.lab.output import check_lines

    folder = folder.absolute()
    checks = command.check(context_of(console, folder / "envs"), folder, probe=probe)
    console.result("lab-check", {"checks": checks}, check_lines(checks))
    return 1 if any(check.verdict == "fail" for check in checks) else 0
