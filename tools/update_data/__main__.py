"""The command."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from provision.adapters.uv.linux_wheels import WheelIndex
from provision.catalog import DATA
from provision.core.errors import ProvisionError
from update_data.document import Document
from update_data.refresh import refresh


@click.command()
@click.option("--write", is_flag=True, help="Change the files.")
@click.option(
    "--check", is_flag=True, help="Exit code 1 if anything would change or needs a person."
)
@click.option(
    "--release",
    "only",
    multiple=True,
    metavar="V",
    help="Only this release.  [default: the table's, and newer ones]",
)
@click.option(
    "--architectures",
    is_flag=True,
    help="Also read the GPU architectures out of the wheels: 10 MB each.",
)
@click.option(
    "--index", "url", metavar="URL", help="Another index than pip's or uv's settings name."
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True),
    default=DATA,
    help="Folder of the data files.  [default: ours]",
)
def main(
    write: bool,
    check: bool,
    only: tuple[str, ...],
    architectures: bool,
    url: str | None,
    data: Path,
) -> None:
    """Refresh provision/catalog/data from what the wheels of a package index say. Shows a diff;
    changes nothing without --write."""
    try:
        sys.exit(
            _run(
                write=write, check=check, only=only, architectures=architectures, url=url, data=data
            )
        )
    except ProvisionError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)


def _run(
    *,
    write: bool,
    check: bool,
    only: tuple[str, ...],
    architectures: bool,
    url: str | None,
    data: Path,
) -> int:
    table = Document(data / "releases.yml")
    table.require_releases()
    with WheelIndex(url) as index:
        findings = refresh(index, table.content, only, architectures)
    for row in findings.rows:
        table.set(row)
    for line in findings.lines():
        click.echo(f"# {line}")
    after = table.changed() if findings.rows else table.text
    click.echo(table.diff(after), nl=False)
    differs = after != table.text
    if write and differs:
        table.path.write_text(after, encoding="utf-8")
        click.echo(f"wrote {table.path.name}; next: python tools/facts_json.py --write", err=True)
    if not differs:
        click.echo("the data says what the index says", err=True)
    return int(check and (differs or findings.need_a_person))


if __name__ == "__main__":
    main()
