"""Ensures that files, lock, prefix and kernel match a plan, under the environment's lock.

Each `ensure_*` reuses what already matches and returns whether it made anything.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from provision import channel, render
from provision import lockfile as locks
from provision.adapters import uv
from provision.core import prefix_registry
from provision.core.atomic import atomic_write, remove_leftovers
from provision.core.errors import (
    StaleLock,
    SystemRefused,
    ToolMissing,
    Unreachable,
    Unsolvable,
)
from provision.core.file_locks import environment_lock
from provision.core.package_names import package_name
from provision.core.paths import owner_writes_only
from provision.core.platforms import PLATFORM, host_platform
from provision.core.spec_fields import DEFAULT_PACKAGE_KEYS
from provision.core.types import Lock, LockedPackage, Prefix
from provision.environment import install_record, marker, runtime_package
from provision.environment import kernel as kernels
from provision.environment import prefix as prefixes
from provision.resolver import spec as specs
from provision.workflow import (
    change_journal,
    named_wheels,
    requirements,
    source_builds,
    wheel_folder,
)
from provision.workflow.context import Context, warn_once
from provision.workflow.plan import BuildRequest, Plan, make_plan, require_lock, with_name
from provision.workflow.resolution import check_host_python, unanswered_channels
from provision.workflow.trust import require_trusted_path

# No environment can have this name, so waiting for it while holding an environment cannot deadlock.
BOOTSTRAP = "+channel"


@contextmanager
def locked_plan(context: Context, request: BuildRequest) -> Iterator[Plan]:
    """Hold the environment's lock, and plan. The plan sees what other processes did before, and
    nothing of a change that was killed."""
    request, wheels = prepared_request(context, request)
    request = with_name(context, request)
    assert request.name is not None
    with environment_lock(context.folders, request.name, context.progress):
        change_journal.take_back_killed_change(context.folders, request.name, context.progress)
        with requirements.placed(context.folders.envs / request.name, wheels):
            yield _plan_of_unedited(context, request)


@contextmanager
def previewed_plan(context: Context, request: BuildRequest) -> Iterator[Plan]:
    """The plan without holding a lock. Nothing of it stays."""
    request, wheels = prepared_request(context, request)
    request = with_name(context, request) if wheels else request
    with requirements.placed(context.folders.envs / (request.name or ""), wheels, keep=False):
        yield _plan_of_unedited(context, request)


def _plan_of_unedited(context: Context, request: BuildRequest) -> Plan:
    """Raise StaleLock rather than render over hand edits, or use a lock that lacks them."""
    plan = make_plan(context, request)
    if not request.force:
        render.require_unedited(plan.folder, plan.input_texts())
    return plan


def prepared_request(
    context: Context, request: BuildRequest
) -> tuple[BuildRequest, Mapping[str, bytes]]:
    """The request with `--pip` as spec.yml has it, and the wheels that belong next to it."""
    texts = request.options.get("pip") or ()
    if not texts:
        return request, {}
    options = dict(request.options)
    without = replace(request, options={**options, "pip": ()})
    prepared = requirements.prepare(
        context,
        requirements.read(texts),
        context.folders.envs / (request.name or "new"),  # paths start at any folder of envs
        python_of=lambda: make_plan(context, without).resolution.python,
    )
    for key in ("pip", "indexes", "find_links"):
        options[key] = getattr(prepared, key)
    return replace(request, options=options), prepared.wheels


def check_prefix_path(context: Context, plan: Plan) -> None:
    """Refuse, before the first change, a prefix path that belongs to something else, or that another
    user has a hand in."""
    locks.require_this_platform(plan.name, plan.inputs.machines)
    prefixes.check_location(plan.name, plan.folder, plan.prefix_path)
    if not plan.prefix_path.is_relative_to(context.folders.data):
        require_trusted_path(context.folders, plan.prefix_path)


def check_buildable(context: Context, plan: Plan) -> None:
    """Raise what `build` would raise, before its first change."""
    require_current_lock(plan)
    check_prefix_path(context, plan)
    if plan.request.kernel:
        kernels.check_name(plan.name)


def ensure_inputs(plan: Plan) -> list[str]:
    """Write spec.yml and the files that are locked. Returns the names of the files that changed."""
    written = render.write_files(plan.folder, plan.input_texts(), force=plan.request.force)
    specs.read(plan.folder / render.SPEC)  # remembered: a second build writes nothing
    return written


def ensure_dockerfile(
    context: Context, plan: Plan, texts: Mapping[str, str], *, force: bool = False
) -> list[str]:
    """Write the Dockerfile, of `Plan.dockerfile_texts`.

    One that was edited by hand is left, with a warning, unless forced.
    """
    if render.edited_files(plan.folder, texts) and not force:
        path = plan.folder / render.DOCKERFILE
        context.progress.warn(
            f"{path} was edited by hand and is left as it is; it may name an older lock"
        )
        return []
    return render.write_files(plan.folder, texts, force=force)


def require_current_lock(plan: Plan) -> None:
    """Raise StaleLock if the lock is of other inputs and the request does not replace it."""
    if plan.lock is None or plan.lock_is_current or plan.request.relock:
        return
    changed_options = _changed_options(plan)
    advice = f"`provision lock {plan.name} --relock` (or build with --relock) locks it again"
    if changed_options:
        advice = (
            "The same command with --relock locks what is requested now; "
            "without these options the lock stays valid"
        )
    reason = _stale_reason(plan, plan.lock, changed_options)
    raise StaleLock(f"{plan.lock.path} is stale: {reason}.", advice=f"{advice}.")


def require_existing_lock(plan: Plan) -> Lock:
    """The lock of a plan, for verbs that make none. Raises StaleLock, see `require_current_lock`,
    and InvalidSpec if there is none."""
    require_current_lock(plan)
    return require_lock(plan)


def _stale_reason(plan: Plan, lock: Lock, changed_options: Sequence[str]) -> str:
    if not lock.inputs_sha256:
        return "another tool made it, and it does not say from what"
    if lock.as_of != plan.inputs.as_of:
        before = f"as of {lock.as_of}" if lock.as_of else "without `as_of`"
        now = f"as of {plan.inputs.as_of}" if plan.inputs.as_of else "without `as_of`"
        return f"it was locked {before}, and is now requested {now}"
    if lock.python_from != plan.python_from:
        return f"its Python is from {lock.python_from}, and now requested from {plan.python_from}"
    options = f" ({', '.join(changed_options)})" if changed_options else ""
    return f"the request changed since it was locked{options}"


def _changed_options(plan: Plan) -> list[str]:
    """The options that differ from what spec.yml says, as on the command line; without those of the
    image, which are not part of a lock."""
    path = plan.folder / render.SPEC
    content = specs.read(path) if path.exists() else {}
    flags = plan.request.option_flags()
    return [
        flag
        for key, flag in flags.items()
        if key not in ("base", "code") and content.get(key) != plan.spec_content.get(key)
    ]


def ensure_lock(context: Context, plan: Plan) -> tuple[Plan, Lock, bool, list[str]]:
    """The plan with what gave way, its lock, whether it was solved now, and the files that were
    written.

    Writes nothing before everything is solved. Raises StaleLock, see `locked_plan` and
    `require_current_lock`.
    """
    require_current_lock(plan)
    lock = plan.reusable_lock
    if lock is not None:
        written = ensure_inputs(plan)
        written += ensure_dockerfile(context, plan, plan.dockerfile_texts(lock))
        return plan, lock, False, written
    warn_if_day_is_not_over(context, plan.inputs.as_of)
    if plan.inputs.pip:
        report_index_settings(context)
    report_left_out(context, plan)
    context.progress.info(
        f"solving {len(plan.inputs.conda)} conda and {len(plan.inputs.pip)} pip requirements"
    )
    plan, packages = solve_giving_way(context, plan, context.folders.channels)
    path = plan.folder / locks.FILE
    with source_builds.built(context, plan, packages) as built:
        text, lock = locks.compose(path, plan.inputs, built, python_from=plan.python_from)
        if plan.lock is not None:
            for line in locks.describe_diff(diff_with(path, text)):
                context.progress.info(line)
        # The spec.yml of a user is not rewritten, so what options change is in the lock alone.
        spec_path, options = plan.folder / render.SPEC, _changed_options(plan)
        if options and render.file_state(spec_path) == "edited":
            context.progress.warn(
                f"{spec_path} was edited and is not rewritten: write what {', '.join(options)} says "
                "into it, or the lock is stale as soon as a command leaves that out"
            )
        with new_lock(context, plan, lock, text) as written:
            return plan, lock, True, written


@contextmanager
def new_lock(
    context: Context,
    plan: Plan,
    lock: Lock,
    text: str,
    *,
    named: Collection[str] | None = None,
    spec_text: str | None = None,
    replaced: Prefix | None = None,
) -> Iterator[list[str]]:
    """Write a lock and the files that belong to it; they stay only if the block succeeds, to which
    the names of the changed files are passed.

    named: the packages of which is said why they are not the newest; all that the request names by
    default. spec_text: of a spec.yml that the user wrote. replaced: a prefix that the block replaces, and
    keeps.
    """
    inputs = plan.input_texts()
    dockerfile = plan.dockerfile_texts(lock)
    texts = {**inputs, locks.FILE: text, **dockerfile}
    if spec_text is not None and render.SPEC not in inputs:
        texts[render.SPEC] = spec_text
    with change_journal.all_or_nothing(context.folders, plan.folder, texts, replaced):
        # One that provision wrote, and nobody edited, is written anew as the others are.
        if render.SPEC not in inputs and render.SPEC in texts:
            atomic_write(plan.folder / render.SPEC, texts[render.SPEC])
        written = ensure_inputs(plan)
        atomic_write(plan.folder / locks.FILE, text)
        yield written + ensure_dockerfile(context, plan, dockerfile)
    wheel_folder.remove_unnamed(plan.folder, text, render.read_text(plan.folder / render.SPEC))
    named_wheels.report_older(context, plan.resolution, lock, named)


def diff_with(path: Path, text: str) -> locks.LockDiff:
    """How a lock would differ with this text."""
    return locks.diff_locks(locks.read_file(path), locks.read_file(path, text.encode()))


def report_left_out(context: Context, plan: Plan) -> None:
    """Say which requirements do not apply to the plan's Python and platforms, by their markers."""
    resolution = plan.resolution
    applying = {package_name(pin.requirement) for pin in resolution.pins}
    for text in resolution.spec.pip:
        if ";" in text and package_name(text) not in applying:
            context.progress.info(
                f"left out, by its marker: `{text}` (Python {resolution.python} on "
                f"{', '.join(resolution.platforms)})"
            )


def report_index_settings(context: Context) -> None:
    """Name the settings of uv and pip that decide where wheels come from, and uv's settings that
    are left out."""
    settings = uv.configured_settings()
    if settings.origins:
        context.progress.info(f"wheels come from your settings: {', '.join(settings.origins)}")
    if settings.ignored:
        warn_once(
            context,
            f"not used: {', '.join(settings.ignored)}; an environment depends on its request "
            "alone (write versions into spec.yml, or use --pip)",
        )


def warn_if_day_is_not_over(context: Context, as_of: str | None) -> None:
    today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    if as_of and as_of >= today:
        context.progress.warn(
            f"{as_of} is not over yet: a later lock may also contain packages published until its "
            "end"
        )


def solve(context: Context, plan: Plan, channels: Path) -> tuple[LockedPackage, ...]:
    """The packages of a plan.

    channels: where this machine's Python is packaged, if Python comes from it.
    """
    python = local_python(context, plan, channels)
    with context.progress.meter("waiting for the solvers", 0):
        return locks.solve(plan.inputs, plan.resolution, local_python=python, solver=context.solver)


def solve_giving_way(
    context: Context, plan: Plan, channels: Path
) -> tuple[Plan, tuple[LockedPackage, ...]]:
    """The packages of a plan, and the plan with what gave way: in an environment that is new, what is
    added by default, where the solvers say that it alone is in the way."""
    try:
        return plan, solve(context, plan, channels)
    except Unsolvable as error:
        options = plan.request.options
        extras = {
            key.name: key.installs[0]
            for key in DEFAULT_PACKAGE_KEYS
            if key.negative_option in error.advice and options.get(key.name) is None
        }
        extras.pop("companions", None)
        # An existing spec.yml may be the user's.
        if not extras or (plan.folder / render.SPEC).exists():
            raise
        for names in (*([name] for name in extras), list(extras)):
            changed = {**options, **dict.fromkeys(names, False)}
            request = replace(plan.request, options=changed, resolved=None)
            with suppress(Unsolvable):
                other = make_plan(context, request)
                packages = solve(context, other, channels)
                left_out = " and ".join(extras[name] for name in names)
                context.progress.info(f"left out {left_out}: the request cannot be solved with it")
                return other, packages
        raise


def local_python(context: Context, plan: Plan, channels: Path) -> locks.LocalPythonChannel | None:
    """The channel with this machine's Python, packaged if necessary; None if not used.

    Raises ToolMissing if it is not the Python that the plan requests.
    """
    if plan.python_from != "host":
        return None
    require_no_conda_packages(context, plan)
    check_host_python(plan.resolution.spec)
    host_channel = ensure_host_channel(context, channels)
    return locks.LocalPythonChannel(channel=host_channel.url, glibc=host_channel.glibc)


def require_no_conda_packages(context: Context, plan: Plan) -> None:
    """Raise Unreachable for conda packages of a request whose Python comes from this machine: of
    conda's packages there are only this Python and its pip."""
    names = {package_name(text) for text in plan.inputs.conda} - {"python", "pip"}
    channels = plan.resolution.channels
    if not names:
        return
    silent = unanswered_channels(context.solver, channels, plan.resolution.platforms[0])
    problem = f"no conda channel answers ({'; '.join(map(': '.join, silent.items()))})"
    advice = "Name a mirror that answers with --mirror"
    if len(silent) < len(channels):
        problem = "Python comes from this machine, and so do all conda packages"
        advice = f"`provision lock {plan.name} --relock --python-from channel` changes that"
    raise Unreachable(
        f"{', '.join(sorted(names))} would come from conda, but {problem}.",
        advice=f"{advice}, or take it from the package index (without --conda).",
    )


@owner_writes_only()
def ensure_host_channel(
    context: Context, channels: Path, *, rebuild: bool = False
) -> channel.HostPythonChannel:
    """`provision channel bootstrap`: a local channel with this machine's Python and pip."""
    if host_platform() != PLATFORM:
        raise ToolMissing(
            f"This machine's Python can only be packaged on {PLATFORM}.",
            advice="Use --channel to name a channel that answers.",
        )
    with environment_lock(context.folders, BOOTSTRAP, context.progress):
        return channel.bootstrap(
            channels, context.progress, rebuild=rebuild, mirrors=context.mirrors
        )


@owner_writes_only()
def ensure_prefix(
    context: Context,
    plan: Plan,
    lock: Lock,
    *,
    before: Lock | None = None,
    keep_replaced: bool = False,
) -> tuple[Prefix, bool]:
    """The prefix of a lock, and whether it, or the runtime package in it, was installed now.

    before: the lock that this one replaces, if the present prefix may be of that one.
    keep_replaced: as for `prefixes.create`.
    """
    locks.require_this_platform(plan.name, lock.platforms)
    # A build killed right after the swap left the old prefix next to a current one.
    remove_leftovers(plan.prefix_path)
    prefix = plan.reusable_prefix(lock)
    if prefix is not None:
        is_new = _install_runtime(context, prefix)
        with suppress(SystemRefused):  # by the prefix of somebody else
            marker.record_spec(prefix.path, plan.folder)
        return prefix, is_new
    locks.require_complete(lock, plan.pins)
    added = marker.added_by_hand(plan.prefix_path)
    if added:
        context.progress.warn(
            f"{plan.prefix_path} is made again without what was installed there by hand: "
            f"{', '.join(added)}. `provision add {plan.name} PACKAGE` makes a package part of it"
        )
    prefix_registry.record_project(context.folders)
    prefix = prefixes.create(
        lock,
        plan.name,
        plan.folder,
        plan.prefix_path,
        context.folders,
        context.progress,
        context.mirrors,
        before=before,
        warnings=[warning.what for warning in plan.resolution.warnings],
        keep_replaced=keep_replaced,
    )
    _install_runtime(context, prefix)  # a change of wheels leaves an older one
    prefix_registry.record_prefix(context.folders, plan.name, plan.prefix_path)
    return prefix, True


@owner_writes_only()
def ensure_runtime(context: Context, prefix: Prefix) -> None:
    """Update the runtime package in a prefix, for verbs that do not hold the environment's lock.

    Takes the lock only if there is something to do.
    """
    if not runtime_package.is_current(prefix.path, runtime_package.load()):
        with environment_lock(context.folders, prefix.name, context.progress):
            _install_runtime(context, prefix)


def _install_runtime(context: Context, prefix: Prefix) -> bool:
    """The same in place; whether there was anything to do. The caller holds the environment's lock."""
    package = runtime_package.load()
    if runtime_package.is_current(prefix.path, package):
        return False
    runtime_package.install(prefix.path, package)
    install_record.compile_runtime(prefix.path, context.folders.byte_code)
    context.progress.info(f"installed {runtime_package.NAME} {package.version} into {prefix.path}")
    return True


# The Jupyter kernel of a prefix, and whether it was registered now.
ensure_kernel = owner_writes_only()(kernels.install)
