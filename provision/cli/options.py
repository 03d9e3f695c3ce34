"""What commands share: groups of options, and turning errors into exit codes."""

from __future__ import annotations

import dataclasses
import errno
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from provision.cli.shared_options import shared_value
from provision.core.spec_fields import DEFAULT_PACKAGE_KEYS, QUERY_KEYS, SPEC_KEYS, SpecKey

if TYPE_CHECKING:
    from provision.cli.console import Console
    from provision.core.errors import ProvisionError
    from provision.core.mirrors import MirrorSetting
    from provision.core.types import EnvironmentOutcome
    from provision.workflow.context import Context
    from provision.workflow.plan import BuildRequest, PlanStep

Command = TypeVar("Command", bound=Callable[..., Any])

# All that ends a line in YAML, a shell or systemd, or moves the cursor.
_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
INTERRUPT = "Interrupted"  # as `kind` of an error


def option_group(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in the order in which `--help` shows them."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def name_argument(command: Command) -> Command:
    """NAME, and the paragraph of the help that explains it."""
    summary = inspect.cleandoc(command.__doc__ or "")
    command.__doc__ = (
        f"{summary}\n\nNAME is an environment with a spec.yml in the envs folder; options override "
        "what the file says. Without NAME, options describe the environment and give it its name."
    )
    return click.argument("name", required=False, callback=_refuse_stray_package)(command)


def _refuse_stray_package(
    context: click.Context, parameter: click.Parameter, name: str | None
) -> str | None:
    """`--pip einops numpy` requests no environment called numpy."""
    arguments = sys.argv
    for number in range(2, len(arguments)):
        option, package = arguments[number - 2], arguments[number - 1]
        if arguments[number] != name or option not in ("--pip", "--conda"):
            continue
        envs = Path(shared_value(context, "envs") or os.environ.get("PROVISION_ENVS") or "envs")
        if not (envs / name).exists():
            raise click.UsageError(
                f"`{name}` would be the name of a new environment. {option} takes one package: "
                f"write {option} {package} {option} {name}, or put the environment's name first."
            )
    return name


environment_argument = click.argument("name")
prefix_option = click.option(
    "--prefix",
    type=click.Path(path_type=Path),
    help="Folder of the environment.  [default: in the user's data folder]",
)
relock_option = click.option("--relock", is_flag=True, help="Solve again and replace the lock.")
all_option = click.option(
    "--all",
    "every",
    is_flag=True,
    help="Do this for every environment in the envs folder, several in parallel.",
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be done; change nothing."
)
yes_option = click.option(
    "-y", "--yes", is_flag=True, help="Remove without asking; required without a terminal."
)
no_wait_option = click.option(
    "--no-wait",
    is_flag=True,
    help="Fail at once if another process is using the same environment or folder.",
)
output_file_option = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File to write.  [default: standard output]",
)


class SbomFormat(click.Choice[str]):
    """Formats of which one is CycloneDX; others are made of it by other tools."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "spdx":
            self.fail(
                "SPDX is made of CycloneDX: write `--format cyclonedx -o sbom.cdx.json`, then "
                "`syft convert sbom.cdx.json -o spdx-json` or `cyclonedx convert`.",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


# Where to fetch from; never part of a spec or a lock.
mirror_option = click.option(
    "--mirror",
    "mirrors",
    multiple=True,
    metavar="WHAT=URL|DIR",
    help="Fetch WHAT (a channel's name or URL, `*` for all channels, or `pypi`) from URL instead. "
    "DIR, made by `channel mirror`, serves everything. Repeatable.",
)

build_env_option = click.option(
    "--build-env",
    multiple=True,
    metavar="NAME",
    help="Let code that builds packages (of a git address, a project's folder, an sdist) see this "
    "variable. Repeatable.",
)

SPEC_OPTIONS = tuple(key.name for key in SPEC_KEYS)
QUERY_OPTIONS = tuple(key.name for key in QUERY_KEYS)
# Kinds of keys that have only some values.
KINDS_WITH_CHOICES = ("source", "sources")


class SourceChoice(click.Choice[str]):
    """The names of the sources, which are read when a verb needs them and not for `--help`.

    Importing the sources reads the catalog, which takes as long as everything else in `--help`.
    """

    def __init__(self, key: SpecKey) -> None:
        self._key = key
        self.case_sensitive = True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        from provision import sources

        return sources.allowed_choices(self._key)


# The build that --torch 2.3.1+cu121 names, for the callbacks of --cuda and --cpu.
TORCH_BUILD = "provision.torch_build"


def _take_torch(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """2.3.1 of 2.3.1+cu121, which also stands for --cuda 12.1."""
    if text is None or context.resilient_parsing:
        return text
    from provision.resolver.input_forms import CPU, torch_form

    form = torch_form(text)
    normalized = form.release
    if form.cuda:
        context.meta[TORCH_BUILD] = (text, form.cuda)
        normalized += " with --cpu" if form.cuda == CPU else f" with --cuda {form.cuda}"
        _check_torch_build(
            context, context.params.get("cuda"), is_cpu=bool(context.params.get("cpu"))
        )
    _say_normalized("--torch", text, normalized)
    return form.release


def _take_cuda(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    # The module loads all facts, which a command without these options need not.
    if context.resilient_parsing or (text is None and TORCH_BUILD not in context.meta):
        return text
    from provision.resolver.input_forms import CPU, cuda_form

    if text is None:
        _, build = context.meta.get(TORCH_BUILD, ("", CPU))
        return None if build == CPU else str(build)
    version = cuda_form(text)
    _say_normalized("--cuda", text, version)
    _check_torch_build(context, version, is_cpu=False)
    return version


def _take_cpu(context: click.Context, option: click.Parameter, is_cpu: bool) -> bool:
    if not is_cpu and TORCH_BUILD not in context.meta:
        return False
    from provision.resolver.input_forms import CPU

    if is_cpu:
        _check_torch_build(context, None, is_cpu=True)
    _, build = context.meta.get(TORCH_BUILD, ("", None))
    return is_cpu or build == CPU


def _check_torch_build(context: click.Context, cuda: str | None, *, is_cpu: bool) -> None:
    """Raises UsageError if --cuda or --cpu contradicts the build that --torch names."""
    from provision.resolver.input_forms import CPU

    if TORCH_BUILD not in context.meta:
        return
    text, build = context.meta[TORCH_BUILD]
    named = "a CPU build" if build == CPU else f"CUDA {build}"
    if cuda is not None and cuda != build:
        raise click.UsageError(f"--torch {text} names {named}, and --cuda {cuda} another.", context)
    if is_cpu and build != CPU:
        raise click.UsageError(f"--torch {text} names {named}, and --cpu none.", context)


def _take_python(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text is None or context.resilient_parsing:
        return text
    from provision.resolver.input_forms import python_form

    version = python_form(text)
    _say_normalized("--python", text, version)
    return version


def _take_gpus(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    if not texts or context.resilient_parsing:
        return texts
    from provision.resolver.input_forms import gpu_form

    names = []
    for text in texts:
        name = gpu_form(text)
        _say_normalized("--gpu", text, name)
        names.append(name)
    return tuple(names)


def _say_normalized(option: str, text: str, normalized: str) -> None:
    """Say on standard error how an option's text is read, unless it is as it was."""
    if text.casefold() != normalized.casefold():
        click.echo(f"  {option} {text}: taken as {normalized}", err=True)


# Options that take more forms than a spec.yml does.
FORGIVING_OPTIONS: Mapping[str, Callable[..., Any]] = {
    "torch": _take_torch,
    "cuda": _take_cuda,
    "cpu": _take_cpu,
    "python": _take_python,
    "gpu": _take_gpus,
}


def option_of(key: SpecKey) -> Callable[[Command], Command]:
    """The option that sets a key."""
    option = key.option or f"--{key.name}"
    settings: dict[str, Any] = {"help": key.help, "metavar": key.metavar}
    if key.default:
        settings["help"] += f"  [default: {key.default}]"
    if key.kind in KINDS_WITH_CHOICES:
        settings["type"] = SourceChoice(key)
    elif key.choices:
        settings["type"] = click.Choice(key.choices)
    if key.name in FORGIVING_OPTIONS:
        settings["callback"] = FORGIVING_OPTIONS[key.name]
    if key.is_list:
        settings["multiple"] = True
    elif key.kind == "switch":
        settings["is_flag"] = True
    elif key.kind == "flag":
        option = f"{option}/{key.negative_option}"
        settings["default"] = None  # not given, which leaves the answer to spec.yml
    return click.option(option, key.name, **settings)


# What an environment is requested to be, and which builds of the matrix are meant.
request_options = option_group(*(option_of(key) for key in SPEC_KEYS), mirror_option)
companion_options = option_group(*(option_of(key) for key in DEFAULT_PACKAGE_KEYS))
query_options = option_group(*(option_of(key) for key in QUERY_KEYS))

# A name is that of a field of SmokeRequest.
quick_option = click.option(
    "--quick",
    "profile",
    flag_value="quick",
    default=None,
    help="Run a short smoke test: fewer sizes, fewer iterations.",
)
_KEYS_BY_OPTION = {key.option: key for key in SPEC_KEYS}
settings_option = option_of(_KEYS_BY_OPTION["--set"])
base_option = option_of(_KEYS_BY_OPTION["--base"])


def verb(command: Callable[..., int | None]) -> Callable[..., None]:
    """Give a command its Console, and turn what it raises into one line and an exit code."""
    takes_envs = "envs" in inspect.signature(command).parameters

    @functools.wraps(command)
    def run(**options: Any) -> None:
        from provision.cli.console import Console
        from provision.core import settings
        from provision.core.errors import ProvisionError
        from provision.core.system_errors import named_errors

        context = click.get_current_context()
        as_json, verbose, quiet, debug = (
            bool(shared_value(context, name)) for name in ("as_json", "verbose", "quiet", "debug")
        )
        console = Console(as_json=as_json, verbose=verbose or debug, quiet=quiet)
        if takes_envs:
            options["envs"] = shared_value(context, "envs")
        try:
            _refuse_control_characters()
            with named_errors("the working folder"):
                os.getcwd()  # noqa: PTH109
            settings.apply_places(os.environ)
            status = command(console, **options) or 0
            sys.stdout.flush()
            sys.exit(status)
        except KeyboardInterrupt:
            console.error_object(INTERRUPT, "interrupted", INTERRUPTED)
            console.warn("interrupted")
            sys.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise  # main prints it
        except Exception as error:
            known = error if isinstance(error, ProvisionError) else _system_error(error)
            if debug or known is None:
                console.error_object(type(error).__name__, str(error), 1)
                raise
            console.error(known)
            sys.exit(known.exit_code)

    return run


def _system_error(error: Exception) -> ProvisionError | None:
    """The error of the system that this is, or that it comes from, in our terms."""
    from provision.core.system_errors import from_system

    if isinstance(error, OSError):
        return from_system(error)
    if isinstance(error, MemoryError):
        return from_system(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "memory"))
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        return from_system(OSError(errno.EAGAIN, str(error), "a thread"))
    return None


def _refuse_control_characters() -> None:
    """Raise InvalidSpec for a line end and its like in an option or argument: it would begin a line
    of its own in a script, a manifest or a unit. A COMMAND may hold them."""
    from provision.core.errors import InvalidSpec

    context = click.get_current_context()
    for parameter in context.command.get_params(context):
        name = parameter.name or ""
        value = context.params.get(name) or shared_value(context, name)
        if parameter.type is click.UNPROCESSED:
            continue
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, (str, Path)) and _CONTROL_CHARACTERS.search(str(text)):
                raise InvalidSpec(
                    f"{parameter.opts[0]}: {str(text)!r} has a line end or another control character.",
                    advice="Leave it out.",
                )


def confirm(question: str, lines: Sequence[str], *, yes: bool) -> bool:
    """Ask on the terminal, after these lines, which -q does not leave out.

    Raises click.UsageError where there is no terminal: a script must say --yes.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError(
            "This asks before it removes, and there is no terminal to ask on. Add --yes "
            "(or --dry-run to see what it would remove)."
        )
    from provision.cli.console import for_stream

    click.echo(for_stream("\n".join(lines), sys.stderr), err=True)
    return click.confirm(question, err=True)


def context_of(
    console: Console, envs: Path | None, options: Mapping[str, Any] | None = None
) -> Context:
    """The context of a command.

    Mirrors are looked up only for a command that has the options for them.
    """
    from provision.adapters import conda
    from provision.core import settings
    from provision.core.paths import default_folders
    from provision.workflow.context import Context, mirrors_of

    options = options or {}
    if options.get("build_env"):
        from provision.adapters.uv.build_environment import BUILD_ENV, chosen_variables

        # A variable, because uv runs below many functions.
        names = os.environ.get(BUILD_ENV, "").split()
        os.environ[BUILD_ENV] = " ".join([*names, *options["build_env"]])
        chosen_variables(os.environ)
    mirrors: Sequence[MirrorSetting] = ()
    if "mirrors" in options:
        mirrors = settings.mirror_settings(options["mirrors"], os.environ)
    return Context(
        folders=default_folders(envs),
        progress=console,
        solver=conda.Solver(mirrors_of(mirrors)),
        wait=not options.get("no_wait"),
        on_smoke_line=functools.partial(_show_smoke_line, console) if console.has_watcher else None,
    )


def _show_smoke_line(console: Console, line: str) -> None:
    """A line of a running smoke test, as wide as the terminal."""
    from provision.cli.console import SAY_INDENT
    from provision_runtime.report import table as report_table

    width = report_table.terminal_width(2)
    indent = report_table.FINDING_INDENT + 2
    if line and not line.startswith(" "):
        indent = report_table.MESSAGE_COLUMN
    for piece in report_table.wrapped(line, width - SAY_INDENT if width else None, indent):
        console.say(piece)


def spec_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a command that are keys of spec.yml."""
    return {key: options[key] for key in SPEC_OPTIONS if key in options}


def build_request(name: str | None, options: Mapping[str, Any], **fields: Any) -> BuildRequest:
    """The request that a command's options make.

    fields: of BuildRequest, beyond its spec and its smoke test.
    """
    from provision.workflow.plan import BuildRequest
    from provision.workflow.smoke.runner import SmokeRequest

    smoke_fields = [field.name for field in dataclasses.fields(SmokeRequest)]
    given = {key: options[key] for key in smoke_fields if options.get(key)}
    return BuildRequest(
        name=name, options=spec_options(options), smoke_request=SmokeRequest(**given), **fields
    )


def requests_of_all(
    context: Context, name: str | None, options: Mapping[str, Any], **fields: Any
) -> list[BuildRequest]:
    """--all: a request for each environment of the envs folder.

    Raises InvalidSpec if one was also named or described.
    """
    from provision.core.errors import InvalidSpec
    from provision.workflow.batch import environment_names

    conflicting = list(build_request(name, options).option_flags().values())
    if name:
        conflicting.insert(0, f"the name `{name}`")
    if conflicting:
        raise InvalidSpec(
            "--all takes each environment as its spec.yml describes it, and cannot be combined "
            f"with {', '.join(conflicting)}.",
            advice="Leave out --all, or everything else.",
        )
    return [build_request(name, options, **fields) for name in environment_names(context)]


def print_outcomes(console: Console, outcomes: Sequence[EnvironmentOutcome]) -> int:
    """Print a summary of many environments; returns 1 if any of them failed or differs."""
    from provision.cli.smoke_output import outcome_lines

    console.result("outcomes", {"environments": outcomes}, outcome_lines(outcomes))
    return int(any(outcome.exit_code for outcome in outcomes))


def print_steps(console: Console, steps: Sequence[PlanStep]) -> None:
    """Print what a command would do."""
    from provision.cli.console import output_width, wrap

    lines = []
    for step in steps:
        # The lines of one step stay together on a terminal.
        first, *rest = wrap(f"{step.stage}: {step.would}", output_width(), indent=2)
        lines += [first, *rest]
    actions = [{"stage": step.stage, "would": step.would} for step in steps]
    console.result("plan", {"steps": actions}, lines)
