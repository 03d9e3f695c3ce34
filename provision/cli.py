"""Command line: options in, one workflow called, result shown, errors to exit codes. Nothing heavy is imported at the top, so
that `provision --help` is quick; docs/cli.md is generated from here and compared by a test."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from provision import __version__

if TYPE_CHECKING:
    from provision.console import Console
    from provision.workflows.plan import Context, ImageWish, Wish

F = TypeVar("F", bound=Callable[..., Any])

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def main() -> None:
    """The `provision` command. Ends the process itself: py-rattler 0.28 was seen to crash in its own clean-up at interpreter exit
    (SIGSEGV after correct results), and the exit code must not depend on that."""
    try:
        cli.main(standalone_mode=True)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    if "rattler" in sys.modules:
        os._exit(status)
    sys.exit(status)


def _options(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    return lambda command: functools.reduce(lambda made, decorate: decorate(made), reversed(decorators), command)


# What every verb takes.
common = _options(
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    click.option("-v", "--verbose", is_flag=True, help="Also show a solver's or tool's own words."),
    click.option("--debug", is_flag=True, help="Show the traceback of an error."),
    click.option("--envs", type=click.Path(path_type=Path), help="Folder of environments.  [default: envs]"),
)
dry = click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
no_wait = click.option("--no-wait", is_flag=True, help="Fail if another process works on this environment.")

# What an environment is asked to be; the keys of spec.yml.
request = _options(
    click.option("--torch", metavar="VERSION", help="PyTorch release: 2.3 (newest 2.3.x) or 2.3.1."),
    click.option("--cuda", metavar="X.Y", help="CUDA version of the build, e.g. 12.1."),
    click.option("--cpu", is_flag=True, help="A build without CUDA, for machines without GPUs."),
    click.option("--python", metavar="X.Y", help="Python minor version.  [default: 3.11 where the build has it]"),
    click.option("--nccl", metavar="VERSION", help="Only a build that carries this NCCL."),
    click.option(
        "--source", type=click.Choice(["auto", "wheels", "pytorch", "conda-forge"]), help="Where the build comes from.  [default: auto]"
    ),
    click.option(
        "--channel", "channels", multiple=True, metavar="NAME|URL", help="conda channel, in order of priority.  [default: conda-forge]"
    ),
    click.option("--channel-alias", "alias", metavar="URL", help="Where channel names are looked up (a mirror)."),
    click.option("--conda", multiple=True, metavar="SPEC", help="Another conda package."),
    click.option("--pip", multiple=True, metavar="REQ", help="Another package from the package index."),
    click.option("--companions/--no-companions", default=None, help="torchvision and torchaudio along with torch.  [default: along]"),
    click.option(
        "--python-from", type=click.Choice(["auto", "channel", "host"]), help="A channel's Python, or this machine's.  [default: auto]"
    ),
    click.option("--base", metavar="REF", help="Base image."),
)
SPEC_OPTIONS = ("torch", "cuda", "cpu", "python", "nccl", "source", "channels", "conda", "pip", "companions", "python_from", "base")

testing = _options(
    click.option("--ranks", type=click.IntRange(1), help="Ranks of the smoke test.  [default: one per GPU; 2 without GPUs]"),
    click.option("--backend", type=click.Choice(["auto", "gloo", "nccl"]), default="auto", show_default=True, help="Collective backend."),
    click.option("--quick", is_flag=True, help="Fewer sizes and iterations."),
    click.option("--require-gpu", is_flag=True, help="Fail where there is no GPU instead of rehearsing on CPU."),
    click.option(
        "--timeout", type=click.FloatRange(min=1), default=300.0, show_default=True, metavar="S", help="Seconds for the whole smoke test."
    ),
)
TEST_OPTIONS = ("ranks", "backend", "quick", "require_gpu", "timeout")

name_argument = click.argument("name", required=False)
prefix_option = click.option(
    "--prefix", type=click.Path(path_type=Path), help="Folder of the environment.  [default: in the user's data folder]"
)
relock_option = click.option("--relock", is_flag=True, help="Replace a lock that is there.")


def verb(command: Callable[..., int | None]) -> Callable[..., None]:
    """Give a command its Console and turn what it raises into one line and an exit code."""

    @functools.wraps(command)
    def run(*, as_json: bool, verbose: bool, debug: bool, **options: Any) -> None:
        from provision.console import Console
        from provision.errors import ProvisionError

        console = Console(as_json=as_json, verbose=verbose or debug)
        try:
            sys.exit(command(console, **options) or 0)
        except ProvisionError as error:
            if debug:
                raise
            console.error(error)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            console.warn("interrupted; nothing half-made was left")
            sys.exit(INTERRUPTED)
        except OSError as error:
            if debug:
                raise
            console.error(_of_system(error))
            sys.exit(_of_system(error).exit_code)

    return run


def _of_system(error: OSError) -> Any:
    """A system error in our terms: full disks are known; any other names the file and the system's reason."""
    import errno

    from provision.errors import NoSpace, ToolFailed

    shown = f"{error.filename or 'a file'}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(f"The disk is full ({shown}).", advice="Free space and run the same command again.")
    failed = ToolFailed(["provision"], error.errno or 1, shown, advice="--debug shows where.")
    failed.message = f"The system refused: {shown}."
    return failed


def _context(console: Console, envs: Path | None, *, alias: str | None = None, wait: bool = True) -> Context:
    from provision.folders import folders
    from provision.workflows.plan import Context

    return Context(where=folders(envs), progress=console, alias=alias or os.environ.get("PROVISION_CHANNEL_ALIAS"), wait=wait)


def _wish(name: str | None, options: dict[str, Any], **more: Any) -> Wish:
    from provision.pipeline.validate import Request
    from provision.workflows.plan import Wish

    asked = {key: options[key] for key in SPEC_OPTIONS if key in options}
    test = {key: options[key] for key in TEST_OPTIONS if key in options}
    if "timeout" in test:
        test["timeout_s"] = test.pop("timeout")
    return Wish(name=name, options=asked, request=Request(**test, inject=tuple(options.get("inject", ()))), **more)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="provision")
def cli() -> None:
    """One line becomes a locked, installed, imaged, smoke-tested and registered PyTorch environment.

    \b
    provision build --torch 2.3 --cuda 12.1
    """


@cli.command()
@name_argument
@request
@prefix_option
@click.option("--image/--no-image", default=None, help="Demand or skip the image.  [default: when a Docker engine answers]")
@click.option("--smoke/--no-smoke", default=True, show_default=True, help="Run the DDP smoke test in what was built.")
@click.option("--kernel/--no-kernel", default=True, show_default=True, help="Register a Jupyter kernel.")
@testing
@relock_option
@dry
@no_wait
@common
@verb
def build(console: Console, name: str | None, envs: Path | None, prefix: Path | None, dry_run: bool, **options: Any) -> None:
    """Build an environment, all of it: lock, prefix, image, smoke test, kernel, passport.

    NAME is an environment with a spec.yml in the envs folder; options override what it says.
    """
    from provision.workflows import build as workflow

    context = _context(console, envs, alias=options["alias"], wait=not options["no_wait"])
    images: dict[bool | None, ImageWish] = {None: "auto", True: "demand", False: "skip"}
    wish = _wish(
        name,
        options,
        prefix=prefix,
        image=images[options["image"]],
        smoke=options["smoke"],
        kernel=options["kernel"],
        relock=options["relock"],
    )
    if dry_run:
        from provision.workflows.preview import build_preview

        steps = build_preview(context, wish)
        return console.result(steps, [f"{step['stage']}: {step['would']}" for step in steps])
    from provision.console import build_summary

    result = workflow.build(context, wish)
    return console.result(result, build_summary(result, workflow.docker_run(result)))


@cli.command()
@name_argument
@request
@click.option("--force", is_flag=True, help="Undo hand edits of generated files.")
@dry
@no_wait
@common
@verb
def render(console: Console, name: str | None, envs: Path | None, force: bool, dry_run: bool, **options: Any) -> None:
    """Write environment.yml, virtual-packages.yml and (for a locked environment) Dockerfile from spec.yml and options."""
    from provision.workflows import plan as workflow

    context = _context(console, envs, alias=options["alias"], wait=not options["no_wait"])
    wish = _wish(name, options, force=force)
    if dry_run:
        wanted = workflow.plan(context, wish)
        return console.result(wanted.texts, "\n".join(wanted.texts.values()).rstrip())
    written = workflow.render_only(context, wish)
    return console.result({"written": written}, [f"wrote {file}" for file in written] or ["nothing to write: all files are as rendered"])


@cli.command()
@name_argument
@request
@relock_option
@dry
@no_wait
@common
@verb
def lock(console: Console, name: str | None, envs: Path | None, dry_run: bool, **options: Any) -> None:
    """Write conda-lock.yml: every package, conda and pip, by URL and hash."""
    from provision.workflows import plan as workflow
    from provision.workflows.preview import lock_preview

    context = _context(console, envs, alias=options["alias"], wait=not options["no_wait"])
    wish = _wish(name, options, relock=options["relock"])
    if dry_run:
        packages = lock_preview(context, wish)
        lines = [f"{package.manager}  {package.name} {package.version} {package.build}".rstrip() for package in packages]
        return console.result(packages, lines)
    _, made, anew = workflow.lock_only(context, wish)
    told = {"path": made.path, "sha256": made.sha256, "packages": len(made.packages), "portable": made.portable, "made": anew}
    word = "locked" if anew else "already locked"
    return console.result(told, f"{word}: {len(made.packages)} packages in {made.path}" + ("" if made.portable else " (not portable)"))


@cli.group()
def env() -> None:
    """Environments on this machine: create, list, remove, diff."""


@env.command("create")
@name_argument
@request
@prefix_option
@relock_option
@dry
@no_wait
@common
@verb
def env_create(console: Console, name: str | None, envs: Path | None, prefix: Path | None, dry_run: bool, **options: Any) -> None:
    """Install an environment from its lock (which is made if there is none)."""
    from provision.workflows import plan as workflow

    context = _context(console, envs, alias=options["alias"], wait=not options["no_wait"])
    wish = _wish(name, options, prefix=prefix, relock=options["relock"])
    if dry_run:
        from provision.workflows.preview import build_preview

        steps = [step for step in build_preview(context, wish) if step["stage"] in ("render", "lock", "prefix")]
        return console.result(steps, [f"{step['stage']}: {step['would']}" for step in steps])
    made, anew = workflow.create(context, wish)
    return console.result(made, f"{'created' if anew else 'already there'}: {made.path}")


@env.command("list")
@common
@verb
def env_list(console: Console, envs: Path | None) -> None:
    """List environments: where each prefix is, whether it fits its lock, whether it has a kernel, how its smoke test went."""
    from provision.console import table
    from provision.workflows.verbs import environments

    found = environments(_context(console, envs))
    rows = [(e.name, str(e.prefix or "-"), e.lock, "yes" if e.kernel else "-", e.smoke or "-") for e in found]
    return console.result(found, table(rows, ("name", "prefix", "lock", "kernel", "smoke")) if rows else "no environments")


@env.command("remove")
@click.argument("name")
@dry
@no_wait
@common
@verb
def env_remove(console: Console, name: str, envs: Path | None, dry_run: bool, no_wait: bool) -> None:
    """Remove an environment's prefix, kernel and image from this machine. Its folder in envs stays."""
    from provision.workflows.verbs import remove

    gone = remove(_context(console, envs, wait=not no_wait), name, dry_run=dry_run)
    return console.result({"removed": gone, "dry_run": dry_run}, [f"{'would remove' if dry_run else 'removed'} {what}" for what in gone])


@env.command("diff")
@click.argument("name")
@click.option("--files", is_flag=True, help="Also hash every file (seconds per gigabyte).")
@prefix_option
@common
@verb
def env_diff(console: Console, name: str, envs: Path | None, files: bool, prefix: Path | None) -> int:
    """Compare an environment with its lock. Exit code 1 if they differ."""
    from provision.workflows.verbs import drift

    found = drift(_context(console, envs), name, files=files, asked=prefix)
    console.result(found, [f"{one.kind:8} {one.name}: {one.detail}" for one in found] or "no difference")
    return 1 if found else 0


@cli.group()
def image() -> None:
    """Images of environments."""


@image.command("build")
@name_argument
@request
@dry
@no_wait
@common
@verb
def image_build(console: Console, name: str | None, envs: Path | None, dry_run: bool, **options: Any) -> None:
    """Make the image of a locked environment and load it into the Docker engine."""
    from provision.workflows import verbs as workflow

    context = _context(console, envs, alias=options["alias"], wait=not options["no_wait"])
    wish = _wish(name, options, image="demand")
    if dry_run:
        from provision.workflows.preview import build_preview

        steps = [step for step in build_preview(context, wish) if step["stage"] == "image"]
        return console.result(steps, [f"{step['stage']}: {step['would']}" for step in steps])
    wanted, made, anew = workflow.build_image(context, wish)
    import shlex

    from provision.pipeline.image import run_command

    lines = [
        f"{'made' if anew else 'already there'}: {made.reference} ({made.manifest_digest})",
        shlex.join(run_command(wanted.resolution, made)),
    ]
    return console.result(made, lines)


@cli.command()
@name_argument
@request
@prefix_option
@click.option("--in", "place", type=click.Choice(["prefix", "image", "both"]), default="prefix", show_default=True, help="Where to test.")
@click.option("--inject", multiple=True, metavar="FAULT", help="Rehearse a fault, e.g. die:1:barrier; the test must then fail.")
@testing
@common
@verb
def smoke(console: Console, name: str | None, envs: Path | None, prefix: Path | None, place: str, **options: Any) -> int:
    """Run the DDP smoke test: rendezvous, barrier, all-reduce, DDP step, checkpoint. Exit code 1 unless it passes."""
    from provision.console import smoke_line
    from provision.pipeline.validate import failures
    from provision.workflows import verbs as workflow

    context = _context(console, envs, alias=options["alias"])
    places: Any = {"prefix": ("prefix",), "image": ("image",), "both": ("prefix", "image")}[place]
    results = workflow.smoke(context, _wish(name, options, prefix=prefix), places)
    lines = []
    for found in results:
        lines.append(smoke_line(found))
        lines += [f"  {phase['verdict']:7} {phase['name']:12} {phase.get('message', '')}" for phase in found.report.get("phases", [])]
    console.result(results, lines)
    return 1 if failures(results) else 0


@cli.group()
def kernel() -> None:
    """Jupyter kernels of environments."""


@kernel.command("add")
@name_argument
@request
@prefix_option
@dry
@common
@verb
def kernel_add(console: Console, name: str | None, envs: Path | None, prefix: Path | None, dry_run: bool, **options: Any) -> None:
    """Register an environment with this user's Jupyter."""
    from provision.workflows import verbs as workflow

    context = _context(console, envs, alias=options["alias"])
    if dry_run:
        text = workflow.preview_kernel(context, _wish(name, options, prefix=prefix))
        import json

        return console.result(text, json.dumps(text, indent=1))
    made, anew = workflow.add_kernel(context, _wish(name, options, prefix=prefix))
    return console.result(made, f"{'registered' if anew else 'already registered'}: {made.display_name} ({made.path})")


@kernel.command("list")
@common
@verb
def kernel_list(console: Console, envs: Path | None) -> None:
    """List the Jupyter kernels that provision made."""
    from provision.console import table
    from provision.pipeline.register import installed

    found = installed()
    rows = [(one.name, one.display_name, str(one.prefix)) for one in found]
    return console.result(found, table(rows, ("name", "shown as", "prefix")) if rows else "no kernels")


@kernel.command("remove")
@click.argument("name")
@dry
@common
@verb
def kernel_remove(console: Console, name: str, envs: Path | None, dry_run: bool) -> None:
    """Remove a Jupyter kernel that provision made."""
    from provision.pipeline import register

    path = register.find(name).path if dry_run else register.remove(name)
    return console.result({"removed": path, "dry_run": dry_run}, f"{'would remove' if dry_run else 'removed'} {path}")


@cli.group()
def passport() -> None:
    """Evidence of what was built and measured."""


@passport.command("show")
@click.argument("name")
@common
@verb
def passport_show(console: Console, name: str, envs: Path | None) -> None:
    """Show an environment's passport: request, reasons, lock, image, measured verdicts."""
    from provision.console import passport_lines
    from provision.workflows.verbs import read_passport

    found = read_passport(_context(console, envs), name)
    return console.result(found, passport_lines(found))


@cli.group()
def channel() -> None:
    """Local conda channels."""


@channel.command("bootstrap")
@click.option("--again", is_flag=True, help="Package the interpreter anew even if its version is there.")
@dry
@no_wait
@common
@verb
def channel_bootstrap(console: Console, envs: Path | None, again: bool, dry_run: bool, no_wait: bool) -> None:
    """Package this machine's Python and pip into a local channel, for networks where no channel answers."""
    from provision.channel import host_python
    from provision.workflows.plan import bootstrap

    context = _context(console, envs, wait=not no_wait)
    if dry_run:
        found = host_python()
        return console.result(found, f"would package Python {found.version} ({found.executable}) into {context.where.channels}")
    made = bootstrap(context, again=again)
    return console.result(made, f"Python {made.python} in {made.url} (needs glibc {made.glibc})")


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell, e.g. `eval "$(provision completion bash)"`."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "provision", "_PROVISION_COMPLETE").source())
