"""Verbs of images: build, push, pull, show, sbom, contract, run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import (
    build_request,
    common,
    context_of,
    dry,
    name_argument,
    no_wait,
    running,
    serving,
    verb,
)
from provision.cli.spec_options import request_options

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.image import Compression, NotebookServer, Output, RunFormat, RunOptions


compression = click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "zstd"]),
    default="none",
    show_default=True,
    help="Of the layers in an OCI layout or archive, or in a registry.",
)

placed = click.option(
    "--output",
    "outputs",
    multiple=True,
    metavar="PLACE",
    help="docker, oci:DIR, oci-archive:FILE or docker-archive:FILE; several times.  [default: docker]",
)


@click.group()
def image() -> None:
    """Images of environments."""


@image.command("build")
@name_argument
@request_options
@placed
@compression
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="NAME[:TAG]",
    help="A name for it in the engine, and in what is written; several times.",
)
@dry
@no_wait
@common
@verb
def image_build(
    console: Console, name: str | None, envs: Path | None, dry_run: bool, **options: Any
) -> None:
    """Make the image of a locked environment, and load it into the Docker engine or write it to a path.

    With an --output that is a path no engine is needed; a base is then pulled by provision, or named as oci:DIR,
    oci-archive:FILE or docker-archive:FILE.
    """
    from provision import image as images
    from provision.commands import env as workflow

    context = context_of(
        console,
        envs,
        mirrors=options["mirrors"],
        alias=options["alias"],
        wait=not options["no_wait"],
    )
    outputs = tuple(images.parse_output(text) for text in options["outputs"])
    _check_compression(options["compression"], outputs)
    tags = tuple(images.parse_tag(text) for text in options["tags"])
    request = build_request(name, options, image="demand")
    if dry_run:
        from provision.commands.preview import build_preview

        steps = [
            step for step in build_preview(context, request, outputs) if step["stage"] == "image"
        ]
        return console.result(steps, [f"{step['stage']}: {step['would']}" for step in steps])
    wanted, made, anew = workflow.build_image(
        context, request, outputs, options["compression"], tags
    )
    import shlex

    from provision.image import run_command

    lines = [
        f"{'made' if anew else 'already there'}: {made.reference} ({made.manifest_digest})",
        *(f"wrote {to}" for to in outputs if to.path is not None),
    ]
    if not outputs or any(to.path is None for to in outputs):
        lines += [f"tagged {tag}" for tag in tags]
        lines.append(shlex.join(run_command(wanted.resolution, made.reference)))
    return console.result(made, lines)


def _check_compression(method: Compression, outputs: tuple[Output, ...]) -> None:
    from provision.core.errors import InvalidSpec
    from provision.image import COMPRESSIBLE

    if method != "none" and not any(to.kind in COMPRESSIBLE for to in outputs):
        advice = "Name one with --output; `image push` has --compression too."
        raise InvalidSpec(
            "--compression is for OCI layouts and archives; an engine gets plain layers.",
            advice=advice,
        )


def _asked(options: dict[str, Any]) -> RunOptions:
    from provision import image as images

    given = options["user"]
    return images.RunOptions(
        shm_gib=options["shm_gib"],
        host_network=options["host_network"],
        mounts=tuple(images.parse_mount(text) for text in options["mounts"]),
        user=images.parse_user(given) if given else None,
        reference=images.parse_engine_reference(options["reference"])
        if options["reference"]
        else None,
    )


@image.command("push")
@click.argument("name")
@click.argument("place", metavar="HOST/NAME[:TAG]")
@compression
@click.option(
    "--attach/--no-attach",
    default=True,
    show_default=True,
    help="Smoke verdicts and bills of materials beside the image.",
)
@no_wait
@common
@verb
def image_push(
    console: Console,
    name: str,
    place: str,
    envs: Path | None,
    compression: Compression,
    attach: bool,
    no_wait: bool,
    **options: Any,
) -> None:
    """Send an environment's image to a registry: only the layers that it lacks, with the user of `docker login`.

    What is known of the image is attached to its digest (OCI referrers): verdicts of smoke tests, bills of materials.
    """
    from provision.commands import image_registry as workflow

    pushed = workflow.push_image(
        context_of(console, envs, wait=not no_wait),
        build_request(name, {}),
        place,
        compression,
        attach,
    )
    sizes = f"{pushed.sent / 1e6:.1f} MB sent, {pushed.present / 1e6:.1f} MB there already"
    console.result(
        pushed,
        [
            f"pushed {pushed.tag}: {sizes}",
            *(f"attached {what}" for what in pushed.attached),
            pushed.reference,
        ],
    )


@image.command("pull")
@click.argument("place", metavar="HOST/NAME[:TAG|@DIGEST]")
@placed
@no_wait
@common
@verb
def image_pull(
    console: Console,
    place: str,
    outputs: tuple[str, ...],
    envs: Path | None,
    no_wait: bool,
    **options: Any,
) -> None:
    """Get an image for linux/amd64 out of a registry, into the Docker engine or to a path; every file is checked by its digest.

    A pull that broke off is gone on with. No engine is needed for paths.
    """
    from provision.commands import image_registry as workflow
    from provision.image import parse_output

    pulled = workflow.pull_image(
        context_of(console, envs, wait=not no_wait), place, tuple(map(parse_output, outputs))
    )
    console.result(pulled, [*(f"pulled to {to}" for to in pulled.places), pulled.reference])


@image.command("show")
@click.argument("place", metavar="HOST/NAME[:TAG|@DIGEST]")
@common
@verb
def image_show(console: Console, place: str, envs: Path | None, **options: Any) -> None:
    """Show an image in a registry: its labels, its layers, and the verdicts of smoke tests that are attached to it."""
    from provision.commands import image_registry as workflow
    from provision_runtime.report.text import escape_line

    seen = workflow.show_image(context_of(console, envs), place)
    lines = [seen.reference, f"image id  {seen.image_id}"]
    lines += [
        f"layer     {layer['size'] / 1e6:.1f} MB, {layer['mediaType']}" for layer in seen.layers
    ]
    lines += [f"label     {key}={value}" for key, value in sorted(seen.labels.items())]
    lines += [
        f"smoke     {one['place']}: {one['verdict']} at {one['report'].get('started_at', '?')}"
        for one in seen.verdicts
    ]
    lines += [] if seen.verdicts else ["smoke     no verdict is attached"]
    console.result(seen, map(escape_line, lines))  # whoever may push there wrote them


@image.command("sbom")
@click.argument("name")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["cyclonedx", "spdx"]),
    required=True,
    help="CycloneDX 1.6 or SPDX 2.3, as JSON.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File to write.  [default: standard output]",
)
@common
@verb
def image_sbom(
    console: Console, name: str, envs: Path | None, kind: Any, output: Path | None
) -> None:
    """Write the bill of materials of an environment's image: the packages of its lock and of its base.

    The same image gives the same bytes. What of the base could not be read is said, in the bill too.
    """
    from provision.commands.image_sbom import image_bill
    from provision.core import sbom

    made = image_bill(context_of(console, envs), name)
    for what in made.unread:
        console.say(f"{name}: not read: {what}")
    text = sbom.sbom_text(made, kind)
    if output is None:
        return console.result({"text": text, "unread": made.unread}, text.rstrip("\n"))
    from provision.core.atomic import atomic_write

    atomic_write(output, text)
    return console.result({"path": output, "unread": made.unread}, f"wrote {output}")


@image.command("contract")
@click.argument("name")
@click.option(
    "--format",
    type=click.Choice(["docker", "compose", "slurm-pyxis", "kubernetes", "devcontainer"]),
    default="docker",
    show_default=True,
    help="For whom.",
)
@running
@common
@verb
def image_contract(
    console: Console,
    name: str,
    envs: Path | None,
    format: RunFormat,
    command: tuple[str, ...],
    **options: Any,
) -> None:
    """Print how an environment's image is run: GPUs, shared memory, limits, devices, network, each with its reason.

    COMMAND, after --, is what runs in it.
    """
    import sys

    from provision.commands import image_run as workflow

    context = context_of(console, envs)
    remake = ["provision", *sys.argv[1:]]
    text = workflow.image_contract(
        context, build_request(name, {}), format, _asked(options), command, remake
    )
    console.result({"format": format, "text": text}, text.rstrip("\n"))


@image.command("run")
@click.argument("name")
@running
@serving
@dry
@common
@verb
def image_run(
    console: Console, name: str, envs: Path | None, command: tuple[str, ...], **options: Any
) -> None:
    """Run a command in an environment's image, by its contract; the exit code is the command's.

    COMMAND, after --, is Python if it is left out. GPUs are given where the engine has NVIDIA's runtime.
    """
    import shlex
    import sys

    from provision.commands import image_run as workflow
    from provision.core.errors import InvalidSpec
    from provision.core.process import exec_command

    if options["jupyter"] and command:
        raise InvalidSpec(
            f"--jupyter runs Jupyter, and not `{shlex.join(command)}` too.",
            advice="Leave one of them out.",
        )
    context, request = context_of(console, envs), build_request(name, {})
    notebooks = (
        workflow.notebook(context, request, options["port"], options["listen"])
        if options["jupyter"]
        else None
    )
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    argv = workflow.run_argv(
        context, request, _asked(options), command, terminal=terminal, serving=notebooks
    )
    if options["dry_run"]:
        console.result(argv, shlex.join(argv))
    else:
        exec_command(argv, _admitted(console, notebooks) if notebooks else {})


def _admitted(console: Console, notebooks: NotebookServer) -> dict[str, str]:
    """A token for those who are to use Jupyter, shown with the address, as the variable that Jupyter reads."""
    import secrets

    from provision.image import TOKEN_VARIABLE

    token = secrets.token_hex(24)
    if notebooks.is_open:
        console.warn(
            f"other machines reach Jupyter at {notebooks.address}, over plain HTTP: who sees the traffic sees the token"
        )
    console.say(f"Jupyter will be at {notebooks.url(token)}")
    return {TOKEN_VARIABLE: token}
