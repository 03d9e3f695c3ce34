"""`provision pack`: an environment as one file for the nodes of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.cluster_options import inventory_option
from provision.cli.options import dry_run_option, mirror_option
from provision.cli.verb import context_of, verb

if TYPE_CHECKING:
    from provision.cli.console import Console


@click.command()
@click.argument("name")
@click.option(
    "--compression",
    type=click.Choice(["zstd", "lz4"]),
    default="zstd",
    show_default=True,
    help="lz4 packs and reads faster, but makes a larger file; squashfs only.",
)
@click.option(
    "--format",
    type=click.Choice(["squashfs", "tar"]),
    default="squashfs",
    show_default=True,
    help="squashfs, which nodes mount; or tar (tar.gz), which nodes unpack.",
)
@click.option(
    "--sign",
    type=click.Path(path_type=Path),
    metavar="KEY",
    help="Sign the pack with this ssh key, for nodes whose store has allowed_signers.",
)
@inventory_option
@mirror_option
@dry_run_option
@verb
def pack(console: Console, name: str, envs: Path | None, **options: Any) -> None:
    """Pack a locked environment into one file for nodes.

    The file is a squashfs image (or tar.gz) of the environment as it will be on the nodes, with
    byte code for every module; `path` of nodes.yml says where that is. The same lock gives the same
    bytes. A JSON file next to it holds hashes, and what the environment needs of a node. `provision
    ship` brings both to nodes.
    """
    from provision.verbs.pack import pack as command
    from provision.verbs.pack.output import pack_json, pack_lines

    context = context_of(console, envs, options)
    chosen = (options["format"], options["compression"], options["inventory"])
    if options["dry_run"]:
        steps = command.preview(context, name, *chosen)
        document = {"steps": [{"stage": stage, "would": would} for stage, would in steps]}
        console.result("plan", document, [f"{stage}: {would}" for stage, would in steps])
        return
    image, is_new = command.pack(context, name, *chosen, options["sign"])
    console.result("pack", pack_json(image, is_new), pack_lines(image, is_new))
