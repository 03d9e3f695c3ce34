"""Keeping lock, files and prefix true to a plan, under the environment's name; and the verbs that are no more than that."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path

from provision import channel, render
from provision import image as images
from provision import lockfile as locks
from provision.adapters import conda
from provision.commands.plan import BuildRequest, Context, Plan, name_of, only_the_day_moved, plan
from provision.core import atomic, prefix_registry
from provision.core.errors import InvalidSpec, StaleLock, ToolMissing
from provision.core.file_locks import environment_lock
from provision.core.tempdirs import temporary_directory
from provision.core.types import PLATFORM, Lock, LockedPackage, Prefix
from provision.environment import drift as drifts
from provision.environment import prefix as prefixes
from provision.environment import runtime_package
from provision.resolver import spec

# No environment can have this name, so holding it within an environment cannot wait for itself.
BOOTSTRAP = "+channel"


@contextlib.contextmanager
def planned(context: Context, request: BuildRequest) -> Iterator[Plan]:
    """Hold the environment, then work the request out: what another run did while we waited is seen."""
    with environment_lock(
        context.where, name_of(context, request), context.progress, wait=context.wait
    ):
        yield plan(context, request)


def edited_files(wanted: Plan) -> str:
    return ", ".join(str(wanted.folder / name) for name in wanted.edited)


def render_only(context: Context, request: BuildRequest) -> list[str]:
    """`provision render`: write the generated files; the names of those that changed. The Dockerfile belongs to a lock: without
    one that is current it is left as it is."""
    with planned(context, request) as wanted:
        check_unedited(wanted)
        written = write_inputs(wanted, force=request.force)
        if wanted.lock is not None and wanted.lock_is_current:
            written += write_dockerfile(context, wanted, wanted.lock, force=request.force)
        return written


def check_unedited(wanted: Plan) -> None:
    """Refuse to render over somebody's edits."""
    if wanted.edited:
        raise StaleLock(
            f"{edited_files(wanted)} was edited by hand and differs from what spec.yml renders.",
            advice=f"`provision render {wanted.name} --force` undoes it; `provision lock {wanted.name} --relock` locks it as it is.",
        )


def write_inputs(wanted: Plan, *, force: bool = False) -> list[str]:
    """spec.yml (unless it is the user's own writing) and what is locked."""
    return render.write(wanted.folder, input_texts(wanted), force=force)


def input_texts(wanted: Plan) -> dict[str, str]:
    """What `write_inputs` would have there."""
    path = wanted.folder / render.SPEC
    mine = (
        {}
        if render.state(path) == "edited"
        else {render.SPEC: render.render_spec(wanted.name, wanted.asked)}
    )
    return {**mine, **wanted.texts}


def dockerfile_texts(wanted: Plan, lock: Lock) -> dict[str, str]:
    """The Dockerfile of a lock, as rendered."""
    return render.render_dockerfile(
        wanted.name, images.dockerfile_context(wanted.resolution, lock), wanted.templates
    )


def write_dockerfile(
    context: Context, wanted: Plan, lock: Lock, *, force: bool = False
) -> list[str]:
    """The Dockerfile of a lock; one that somebody edited is theirs, and is mentioned."""
    texts = dockerfile_texts(wanted, lock)
    if render.edited(wanted.folder, texts) and not force:
        context.progress.warn(
            f"{wanted.folder / render.DOCKERFILE} is edited by hand and was left; it may name an older lock"
        )
        return []
    return render.write(wanted.folder, texts, force=force)


def lock_only(context: Context, request: BuildRequest) -> tuple[Plan, Lock, bool]:
    """`provision lock`: the lock, and whether it was made anew."""
    with planned(context, request) as wanted:
        lock, made, _ = ensure_lock(context, wanted, request)
        return wanted, lock, made


def require_current_lock(wanted: Plan, request: BuildRequest) -> Plan:
    """Refuse, before anything is written, what would leave a lock that does not fit its inputs."""
    if wanted.lock is not None and not wanted.lock_is_current and not request.relock:
        changed = _changed(wanted, request)
        advice = f"`provision lock {wanted.name} --relock` (or build with --relock) locks it anew"
        if changed:
            advice = "The same command with --relock locks it anew as is asked for now, without these options it stays as it is"
        if only_the_day_moved(wanted):
            advice += f"; `provision lock {wanted.name} --update PKG` moves PKG alone to that day"
        raise StaleLock(
            f"{wanted.lock.path} is stale: {_why_stale(wanted, wanted.lock, changed)}.",
            advice=f"{advice}.",
        )
    return wanted


def _why_stale(wanted: Plan, lock: Lock, changed: Sequence[str]) -> str:
    if only_the_day_moved(wanted):
        return f"it is as of {_day(lock.as_of)}, and now {_day(wanted.inputs.as_of)} is asked for"
    if wanted.edited:
        return f"{edited_files(wanted)} was edited by hand"
    if lock.python_from != wanted.python_from:
        return f"its Python is from {lock.python_from}, and now {wanted.python_from} is asked for"
    if set(lock.platforms) != set(wanted.inputs.machines):
        return f"it is for {', '.join(lock.platforms)}, and now {', '.join(wanted.inputs.machines)} is asked for"
    return f"the request changed since it was locked{f' ({listed})' if (listed := ', '.join(changed)) else ''}"


def _changed(wanted: Plan, request: BuildRequest) -> list[str]:
    """The options that ask for something else than spec.yml says."""
    path = wanted.folder / render.SPEC
    before = spec.read(path) if path.exists() else {}
    given = [key for key, value in request.options.items() if value not in (None, (), [])]
    return [key for key in given if before.get(key) != wanted.asked.get(key)]


def _day(as_of: str | None) -> str:
    return as_of or "no day"


def ensure_lock(
    context: Context, wanted: Plan, request: BuildRequest
) -> tuple[Lock, bool, list[str]]:
    """The lock of a plan, whether it was made anew, and the files that were written. Everything is solved before anything is."""
    require_current_lock(wanted, request)
    if wanted.lock is not None and wanted.lock_is_current and not request.relock:
        written = write_inputs(wanted, force=request.force)
        return wanted.lock, False, written + write_dockerfile(context, wanted, wanted.lock)
    _tell_open_day(context, wanted.inputs.as_of)
    context.progress.say(
        f"solving {len(wanted.inputs.conda)} conda and {len(wanted.inputs.pip)} pip requirements"
    )
    packages = solve(context, wanted, request, context.where.channels)
    path = wanted.folder / locks.FILE
    text, lock = locks.compose(
        path, wanted.inputs, packages, python_from=wanted.python_from, solver=request.solver
    )
    written = write_inputs(wanted, force=request.force)
    atomic.atomic_write(path, text)
    return lock, True, written + write_dockerfile(context, wanted, lock)


def _tell_open_day(context: Context, as_of: str | None) -> None:
    if as_of and as_of >= datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"):
        context.progress.warn(
            f"{as_of} is not over yet: what is published before it ends would be part of a later lock"
        )


def solve(
    context: Context, wanted: Plan, request: BuildRequest, channels: Path
) -> tuple[LockedPackage, ...]:
    """The packages of a plan. channels: where this machine's Python is packaged, if that is where Python comes from."""
    outside = locks.find_solver(request.solver, context.solver.mirrors) if request.solver else None
    stand_in = _stand_in(context, wanted, channels)
    return locks.solve(
        wanted.inputs,
        wanted.resolution,
        local_python=stand_in,
        solver=context.solver,
        external=outside,
    )


def _stand_in(context: Context, wanted: Plan, channels: Path) -> locks.LocalPythonChannel | None:
    if wanted.python_from != "host":
        return None
    made = bootstrap(context, channels)
    return locks.LocalPythonChannel(channel=made.url, glibc=made.glibc)


def update_lock(
    context: Context, request: BuildRequest, names: Sequence[str], *, dry_run: bool
) -> tuple[Plan, locks.LockDiff]:
    """`provision lock --update`: some packages as a new lock would have them, the others as they are; and what moved. A lock of another
    day becomes one of the day that is asked for: nothing in it is newer, but what stays is older than it need be."""
    with planned(context, request) as wanted:
        if wanted.lock is None:
            raise InvalidSpec(
                f"{wanted.name} has no lock to update.",
                advice=f"`provision lock {wanted.name}` makes it.",
            )
        if not only_the_day_moved(wanted):
            require_current_lock(wanted, request)
        _tell_open_day(context, wanted.inputs.as_of)
        path = wanted.lock.path
        context.progress.say(f"updating {', '.join(names)} in {path}")
        seen = {lock.platform: lock for lock in locks.read_platforms(path)}
        stand_in = _stand_in(context, wanted, context.where.channels)
        packages = locks.update(
            wanted.inputs,
            wanted.resolution,
            names,
            seen,
            local_python=stand_in,
            solver=context.solver,
        )
        text = locks.lock_text(wanted.inputs, packages, python_from=wanted.python_from)
        compared = _compared(path, text)
        if not dry_run and not (compared.same and wanted.lock_is_current):
            write_inputs(wanted, force=request.force)
            atomic.atomic_write(path, text)
            write_dockerfile(context, wanted, locks.read(path))
        return wanted, compared


def _compared(path: Path, text: str) -> locks.LockDiff:
    """How a lock would differ with this text."""
    with temporary_directory("diff") as folder:
        new = folder / path.name
        new.write_text(text, encoding="utf-8")
        return locks.diff_locks(
            locks.read_file(path), locks.read_file(new), ("the lock as it was", "the new lock")
        )


def bootstrap(
    context: Context, channels: Path, *, again: bool = False
) -> channel.HostPythonChannel:
    """`provision channel bootstrap`: a local channel with this machine's Python and pip."""
    if conda.host_platform() != PLATFORM:
        raise ToolMissing(
            f"This machine's Python can be packaged on {PLATFORM} only.",
            advice="Name a channel that answers with --channel.",
        )
    with environment_lock(context.where, BOOTSTRAP, context.progress, wait=context.wait):
        return channel.bootstrap(channels, context.progress, rebuild=again, mirrors=context.mirrors)


def create(context: Context, request: BuildRequest) -> tuple[Prefix, bool]:
    """`provision env create`: lock if there is no lock, then the prefix; whether it was made anew."""
    with planned(context, request) as wanted:
        check_place(wanted)
        lock, _, _ = ensure_lock(context, wanted, request)
        return ensure_prefix(context, wanted, lock)


def check_place(wanted: Plan) -> None:
    """Refuse, before the first change, a place for the prefix that is not this environment's."""
    locks.require_this_platform(wanted.name, wanted.inputs.machines)
    prefixes.check_location(wanted.name, wanted.folder, wanted.prefix_path)


def ensure_prefix(context: Context, wanted: Plan, lock: Lock) -> tuple[Prefix, bool]:
    """The prefix of a lock, and whether it was made anew."""
    locks.require_this_platform(wanted.name, lock.platforms)
    atomic.remove_leftovers(
        wanted.prefix_path
    )  # a build killed right after the swap left the old prefix beside a current one
    found = prefixes.find(wanted.name, wanted.prefix_path)
    if found and drifts.is_current(found, lock):
        install_runtime(context, found)
        return found, False
    made = prefixes.create(
        lock,
        wanted.name,
        wanted.folder,
        wanted.prefix_path,
        context.where,
        context.progress,
        context.mirrors,
    )
    prefix_registry.record_prefix(context.where, wanted.name, wanted.prefix_path)
    return made, True


def install_runtime(context: Context, prefix: Prefix) -> None:
    """Bring a prefix's runtime package up to this provision's, in place. The caller holds the environment's lock."""
    package = runtime_package.load()
    if not runtime_package.is_current(prefix.path, package):
        runtime_package.install(prefix.path, package)
        context.progress.say(f"put {runtime_package.NAME} {package.version} into {prefix.path}")


def ensure_runtime(context: Context, prefix: Prefix) -> None:
    """The same for verbs that work on a prefix without the environment's lock: takes it only if there is something to do."""
    if not runtime_package.is_current(prefix.path, runtime_package.load()):
        with environment_lock(context.where, prefix.name, context.progress, wait=context.wait):
            install_runtime(context, prefix)
