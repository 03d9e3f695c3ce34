"""`provision image`: build, diff, sbom, contract, run. `registry_command` has the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from provision.cli.options import (
    dry_run_option,
    environment_argument,
    mirror_option,
    mount_option,
    option_group,
    output_file_option,
    time_option,
)
from provision.cli.set_option import AT_LEAST_ONE, set_option, setting
from provision.cli.spec_options import base_option, build_request
from provision.cli.verb import context_of, print_steps, run_or_print, verb
from provision.core.dataclass import frozen
from provision.core.platforms import PLATFORMS, Platform, build_platform
from provision.verbs.image import registry_command

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.launch import FileFormat, RunFormat, RunOptions


@frozen
class ContainerSettings:
    """The settings of a container that few change."""

    shm: int | None = setting(AT_LEAST_ONE, "Size of shared memory, in GiB.  [default: 8]")
    host_network: bool = setting(
        bool, "true uses the host's network, for jobs on several hosts.", default=False
    )
    user: str | None = setting(str, "Run as this user, UID:GID.  [default: the image's, 1000:1000]")
    image: str | None = setting(
        str,
        "Name of the image on the machine that runs it.  [default: the name that it was built with]",
    )


# How a container is run, beyond what its environment needs.
run_options = option_group(
    mount_option,
    set_option(ContainerSettings),
    click.argument("command", nargs=-1, type=click.UNPROCESSED),
)

# How large a job is.
job_size_options = option_group(
    click.option(
        "--nodes",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        metavar="N",
        help="Number of nodes.",
    ),
    click.option(
        "--gpus",
        type=click.IntRange(0),
        metavar="N",
        help="GPUs of each node.  [default: all; 1 where a scheduler assigns them]",
    ),
    time_option,
)

jupyter_options = option_group(
    click.option(
        "--jupyter", is_flag=True, help="Start Jupyter instead of COMMAND, with a new token."
    ),
    click.option(
        "--port",
        type=click.IntRange(1, 65535),
        metavar="PORT",
        default=8888,
        show_default=True,
        help="Port of Jupyter on this machine's loopback address.",
    ),
)


@click.group()
def image() -> None:
    """Build, push, verify, compare and run images of environments."""


for _command in (registry_command.push, registry_command.index, registry_command.verify):
    image.add_command(_command)


@image.command("build")
@environment_argument
@base_option
@mirror_option
@click.option(
    "--code",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    metavar="FOLDER",
    help="Put the files that git tracks in this folder into the image.  [default: spec.yml's code]",
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="oci:DIR",
    help="Write the image here, as oci:DIR, instead of loading it into the engine. Repeatable.",
)
@click.option(
    "--platform",
    "image_platform",
    type=click.Choice(PLATFORMS),
    help="The platform of the image, one that the lock has. For another than this machine's, packages are "
    "unpacked and not run.  [default: this machine's]",
)
@dry_run_option
@verb
def build(
    console: Console,
    name: str,
    envs: Path | None,
    dry_run: bool,
    image_platform: Platform | None,
    **options: Any,
) -> None:
    """Build the image of a locked environment.

    With --output oci:DIR, no Docker engine is needed: provision pulls the base image
    itself, or reads it from --base oci:DIR.
    """
    import shlex

    from provision import launch
    from provision.image.export import parse_output
    from provision.verbs.image import image
    from provision.workflow.image import image as command

    context = context_of(console, envs, options)
    outputs = tuple(parse_output(text) for text in options["outputs"])
    request = build_request(name, options, image="demand")
    platform = image_platform or build_platform()
    if dry_run:
        print_steps(console, [image.preview(context, request, outputs, platform)])
        return
    plan, built, is_new = image.build(context, request, outputs, platform)
    status = "made" if is_new else "already exists"
    lines = [f"{status}: {built.reference} ({built.manifest_digest})"]
    lines += [f"wrote oci:{output}" for output in outputs]
    if platform != build_platform():
        lines.append(f"for {platform}, in {built.layout}")
    if image.goes_to_this_engine(outputs, platform):
        argv = command.run_argv(context, plan, launch.RunOptions(), (), terminal=True)
        lines.append(shlex.join(argv))
    console.result("image-build", built, lines)


def _run_options(options: dict[str, Any]) -> RunOptions:
    from provision import launch
    from provision.image.base import parse_engine_reference

    settings: ContainerSettings = options["settings"]
    return launch.RunOptions(
        shm_gib=settings.shm,
        host_network=settings.host_network,
        mounts=tuple(launch.parse_mount(text) for text in options["mounts"]),
        user=launch.parse_user(settings.user) if settings.user else None,
        reference=parse_engine_reference(settings.image) if settings.image else None,
    )


@image.command("diff")
@click.argument("before", metavar="IMAGE")
@click.argument("after", metavar="IMAGE")
@verb
def diff(console: Console, before: str, after: str, envs: Path | None) -> None:
    """Compare two images by their packages and sizes.

    An IMAGE is an environment's name, or oci:DIR. Sizes are of the files, uncompressed; what grew
    most comes first. The exit code is 0 even if they differ.
    """
    from provision.cli.console import table
    from provision.verbs.image.diff import diff_images
    from provision_runtime.report.text import escape_line, format_bytes

    def signed(size: int) -> str:
        return ("+" if size > 0 else "-" if size < 0 else "") + format_bytes(abs(size))

    result = diff_images(context_of(console, envs), before, after)
    cells = [(signed(row.growth), row.manager, row.name, row.versions) for row in result.changes]
    rows = [tuple(map(escape_line, row)) for row in cells]
    growth = result.size_after - result.size_before
    sizes = f"{format_bytes(result.size_before)} -> {format_bytes(result.size_after)}"
    lines = table(rows, ("size", "from", "package", "version")).splitlines() if rows else []
    console.result("image-diff", result, [*lines, f"{signed(growth)} ({sizes})"])


@image.command("sbom")
@click.argument("name")
@output_file_option
@verb
def sbom(console: Console, name: str, envs: Path | None, output: Path | None) -> None:
    """Write the SBOM of an environment's image, as CycloneDX 1.6.

    It lists the packages of the lock, with their licenses; use a scanner for those of the base image.
    The same image always gives the same bytes.
    """
    from provision.core.atomic import atomic_write
    from provision.core.sbom import sbom_text
    from provision.workflow.image.sbom import environment_image, image_sbom

    context = context_of(console, envs)
    text = sbom_text(image_sbom(context, name, environment_image(context, name)))
    if output is None:
        console.document("image-sbom", {"path": None, "text": text}, text)
        return
    atomic_write(output, text)
    console.result("image-sbom", {"path": output, "text": None}, f"wrote {output}")


@image.command("contract")
@click.argument("name")
@click.option(
    "--format",
    type=click.Choice(
        [
            "docker",
            "compose",
            "sbatch",
            "slurm-pyxis",
            "apptainer",
            "kubernetes",
            "jobset",
            "devcontainer",
            "sif",
            "sqsh",
        ]
    ),
    default="docker",
    show_default=True,
    metavar="FORMAT",
    help="The tool that runs the image: docker, compose, slurm-pyxis, apptainer, kubernetes, jobset or "
    "devcontainer. sbatch runs the prefix instead; sif and sqsh make the image's file for Apptainer and "
    "enroot.",
)
@job_size_options
@run_options
@verb
def contract(
    console: Console,
    name: str,
    envs: Path | None,
    format: RunFormat | FileFormat,
    command: tuple[str, ...],
    **options: Any,
) -> None:
    """Print how to run an image, each setting with its reason.

    COMMAND, after --, is the command to run in the image. Python code (train.py or -m MODULE) is
    started with torchrun, once for each GPU of each node; anything else once on each node.
    """
    import sys

    from provision.launch import parse_duration
    from provision.verbs.image.image import image_contract

    context = context_of(console, envs)
    remake = ["provision", *sys.argv[1:]]
    run_options = _run_options(options)
    time_s = parse_duration(options["time"]) if options["time"] else None
    size = (options["nodes"], options["gpus"], time_s)
    request = build_request(name, {})
    text = image_contract(context, request, format, run_options, *size, command, remake)
    console.document("image-contract", {"format": format, "text": text}, text)


@image.command("run")
@click.argument("name")
@run_options
@jupyter_options
@click.option(
    "--scratch",
    is_flag=True,
    help="Mount no working folder: what is written there is removed with the container.",
)
@dry_run_option
@verb
def run(
    console: Console, name: str, envs: Path | None, command: tuple[str, ...], **options: Any
) -> None:
    """Run a command in an environment's image.

    COMMAND, after --, is Python by default; Python code (train.py or -m MODULE) is started once for
    each GPU. The settings are those that `image contract` prints; the exit code is the command's. The
    container gets GPUs if the Docker engine has the NVIDIA runtime. The current folder is its working
    folder (/workspace), as your user, unless --mount or --scratch says otherwise. At the end the
    container is removed, with everything that was written outside of mounted folders.
    """
    import secrets
    import shlex

    from provision.core.errors import InvalidSpec
    from provision.launch import TOKEN_VARIABLE, find_notebook_server
    from provision.workflow.image.image import run_argv
    from provision.workflow.plan import make_plan, require_lock

    if options["jupyter"] and command:
        raise InvalidSpec(
            f"--jupyter starts Jupyter and cannot run `{shlex.join(command)}` too.",
            advice="Leave one of the two out.",
        )
    context = context_of(console, envs)
    plan = make_plan(context, build_request(name, {}))
    is_jupyter = options["jupyter"]
    server = find_notebook_server(require_lock(plan), options["port"]) if is_jupyter else None
    argv = run_argv(
        context,
        plan,
        _run_options(options),
        command,
        server=server,
        folder=None if options["scratch"] else Path.cwd(),
    )
    dry_run = options["dry_run"]
    variables = {}
    if server and not dry_run:
        variables = {TOKEN_VARIABLE: secrets.token_hex(24)}
        address = server.url(variables[TOKEN_VARIABLE])
        console.info(f"Jupyter will be at {address}", shows_token=True)
    run_or_print(console, argv, {**os.environ, **variables}, dry_run=dry_run)
