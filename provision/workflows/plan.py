"""What every verb does first: work the request out (`Plan`), and keep lock and prefix true to it under the environment's name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from provision import channel, conda, folders
from provision.errors import InvalidSpec, StaleLock, ToolMissing, Unreachable
from provision.folders import Folders, held
from provision.model import Lock, Prefix, Progress, Resolution, Spec
from provision.pipeline import image as images
from provision.pipeline import lock as locks
from provision.pipeline import matrix, render, spec, validate
from provision.pipeline import prefix as prefixes

ImageWish = Literal["auto", "demand", "skip"]


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where to work and whom to tell."""

    where: Folders
    progress: Progress
    alias: str | None = None
    wait: bool = True


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the command line asked for beyond the spec."""

    name: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    prefix: Path | None = None
    image: ImageWish = "auto"
    smoke: bool = True
    kernel: bool = True
    relock: bool = False
    force: bool = False
    request: validate.Request = field(default_factory=validate.Request)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A request worked out: which environment, from which facts, with whose Python, as which texts."""

    folder: Path
    resolution: Resolution
    asked: Mapping[str, Any]
    texts: Mapping[str, str]  # of what is locked, as it will stand: hand edits respected
    edited: tuple[str, ...]
    inputs_sha256: str
    lock: Lock | None
    python_from: Literal["channel", "host"]
    prefix_path: Path

    @property
    def name(self) -> str:
        return self.resolution.spec.name

    @property
    def lock_is_current(self) -> bool:
        return self.lock is not None and self.lock.inputs_sha256 == self.inputs_sha256


def plan(context: Context, wish: Wish) -> Plan:
    """Work a request out without changing anything. May ask whether a channel answers, if nothing says where Python is from."""
    wanted = _spec(context, wish)
    folder = context.where.envs / wanted.name
    lock = locks.read(folder / locks.FILE) if (folder / locks.FILE).exists() else None
    python_from, wanted = _python_from(context, wanted, None if wish.relock else lock)
    resolution = matrix.resolve(wanted)
    texts = render.render_inputs(resolution)
    edited = [] if wish.force else render.edited(folder, texts)
    standing = {**texts, **{name: (folder / name).read_text(encoding="utf-8") for name in edited}}
    return Plan(
        folder=folder,
        resolution=resolution,
        asked=spec.content(resolution.spec),
        texts=standing,
        edited=tuple(edited),
        inputs_sha256=render.inputs_sha256(standing[render.ENVIRONMENT], standing[render.VIRTUAL_PACKAGES]),
        lock=lock,
        python_from=python_from,
        prefix_path=folders.prefix_path(context.where, resolution.spec.name, wish.prefix),
    )


def _spec(context: Context, wish: Wish) -> Spec:
    """What is asked for, with the conda requirements in it checked by the solver's own parser."""
    wanted = _combined(context, wish)
    if mistakes := conda.check_specs(wanted.conda) if wanted.conda else []:
        raise InvalidSpec(" ".join(mistakes))
    return wanted


def _combined(context: Context, wish: Wish) -> Spec:
    """Options over the environment's own spec.yml. Without a name the options must say enough to find one."""
    if wish.name:
        name = spec.check_name(wish.name)
        path = context.where.envs / name / render.SPEC
        if not path.exists() and not wish.options.get("torch"):
            known = sorted(found.parent.name for found in context.where.envs.glob(f"*/{render.SPEC}"))
            raise InvalidSpec(
                f"There is no {path}.", advice=f"Environments here: {', '.join(known) or 'none'}; or give --torch and --cuda."
            )
        return spec.combine(spec.read(path) if path.exists() else {}, wish.options, name=name)
    named = matrix.resolve(_with_host_python(context, spec.combine({}, wish.options, name=""))).spec.name
    path = context.where.envs / named / render.SPEC
    return spec.combine(spec.read(path) if path.exists() else {}, wish.options, name=named)


def _with_host_python(context: Context, wanted: Spec) -> Spec:
    """Python from this machine, asked for as such and without a version, is this machine's version."""
    if wanted.python is None and wanted.python_from == "host":
        return dataclasses.replace(wanted, python=channel.host_minor())
    return wanted


def _python_from(context: Context, wanted: Spec, lock: Lock | None) -> tuple[Literal["channel", "host"], Spec]:
    """Decide once, and for an existing lock never again, where Python comes from; the answer is part of the lock."""
    if wanted.python_from == "channel" or (wanted.python_from == "auto" and lock and lock.python_from == "channel"):
        return "channel", wanted
    if wanted.python_from == "auto" and lock is None:
        resolution = matrix.resolve(wanted)
        silent = conda.unanswered(resolution.channels, context.alias)
        if len(silent) < len(resolution.channels):
            return "channel", wanted
        reasons = "; ".join(f"{name}: {reason}" for name, reason in silent.items())
        if resolution.source != "wheels":
            raise Unreachable(
                f"Source {resolution.source} needs its conda channels, and none answers ({reasons}).",
                advice="Name a mirror with --channel-alias, or use --source wheels.",
            )
        context.progress.warn(f"no conda channel answers ({reasons}): Python comes from this machine, and the lock will not be portable")
    return "host", _fits_host(wanted)


def _fits_host(wanted: Spec) -> Spec:
    have = channel.host_minor()
    python = wanted.python or have
    if python != have:
        raise ToolMissing(
            f"Python {python} was asked for, but this machine's Python, which would be packaged, is {have}.",
            advice=f"Ask for --python {have}, run provision with Python {python}, or name a channel that answers with --channel.",
        )
    return dataclasses.replace(wanted, python=python)


def render_only(context: Context, wish: Wish) -> list[str]:
    """`provision render`: write the generated files; the names of those that changed. The Dockerfile belongs to a lock: without
    one that is current it is left as it is."""
    wanted = plan(context, wish)
    with held(context.where, wanted.name, context.progress, wait=context.wait):
        if wanted.edited:
            raise StaleLock(
                f"{edited_files(wanted)} was edited by hand and differs from what spec.yml renders.",
                advice=f"`provision render {wanted.name} --force` undoes it; `provision lock {wanted.name} --relock` locks it as it is.",
            )
        written = write_files(wanted, force=wish.force)
        if wanted.lock is not None and wanted.lock_is_current:
            written += write_dockerfile(wanted, wanted.lock, force=wish.force)
        return written


def edited_files(wanted: Plan) -> str:
    return ", ".join(str(wanted.folder / name) for name in wanted.edited)


def write_files(wanted: Plan, *, force: bool = False) -> list[str]:
    """spec.yml (unless it is the user's own writing) and the generated files."""
    path = wanted.folder / render.SPEC
    mine = {} if render.state(path) == "edited" else {render.SPEC: render.render_spec(wanted.name, wanted.asked)}
    return render.write(wanted.folder, {**mine, **wanted.texts}, force=force)


def write_dockerfile(wanted: Plan, lock: Lock, *, force: bool = False) -> list[str]:
    """The Dockerfile of a lock; one that somebody edited is theirs."""
    texts = render.render_dockerfile(wanted.name, images.dockerfile_context(wanted.resolution, lock))
    if render.edited(wanted.folder, texts) and not force:
        return []
    return render.write(wanted.folder, texts, force=force)


def lock_only(context: Context, wish: Wish) -> tuple[Plan, Lock, bool]:
    """`provision lock`: the lock, and whether it was made anew."""
    wanted = plan(context, wish)
    with held(context.where, wanted.name, context.progress, wait=context.wait):
        write_files(lockable(wanted, wish), force=wish.force)
        lock, made = keep_lock(context, wanted, wish)
        write_dockerfile(wanted, lock)
        return wanted, lock, made


def lockable(wanted: Plan, wish: Wish) -> Plan:
    """Refuse, before anything is written, what would leave a lock that does not fit its inputs."""
    if wanted.lock is not None and not wanted.lock_is_current and not wish.relock:
        cause = f"{edited_files(wanted)} was edited by hand" if wanted.edited else "the request changed since it was locked"
        raise StaleLock(
            f"{wanted.lock.path} is stale: {cause}.",
            advice=f"`provision lock {wanted.name} --relock` (or build with --relock) locks it anew.",
        )
    return wanted


def keep_lock(context: Context, wanted: Plan, wish: Wish) -> tuple[Lock, bool]:
    if wanted.lock is not None and wanted.lock_is_current and not wish.relock:
        return wanted.lock, False
    stand_in = None
    if wanted.python_from == "host":
        made = bootstrap(context)
        stand_in = locks.StandIn(channel=made.url, glibc=made.glibc)
    inputs = locks.inputs(wanted.folder, wanted.inputs_sha256)
    context.progress.say(f"solving {len(inputs.conda)} conda and {len(inputs.pip)} pip requirements")
    return locks.make(inputs, wanted.resolution, stand_in=stand_in, alias=context.alias), True


def bootstrap(context: Context, *, again: bool = False) -> channel.Bootstrapped:
    """`provision channel bootstrap`: a local channel with this machine's Python and pip."""
    with held(context.where, "channel-bootstrap", context.progress, wait=context.wait):
        return channel.bootstrap(context.where.channels, context.progress, again=again)


def create(context: Context, wish: Wish) -> tuple[Prefix, bool]:
    """`provision env create`: lock if there is no lock, then the prefix; whether it was made anew."""
    wanted = plan(context, wish)
    with held(context.where, wanted.name, context.progress, wait=context.wait):
        write_files(lockable(wanted, wish))
        lock, _ = keep_lock(context, wanted, wish)
        write_dockerfile(wanted, lock)
        return keep_prefix(context, wanted, lock)


def keep_prefix(context: Context, wanted: Plan, lock: Lock) -> tuple[Prefix, bool]:
    folders.sweep(wanted.prefix_path)  # a build killed right after the swap left the old prefix beside a current one
    found = prefixes.find(wanted.name, wanted.prefix_path)
    if found and prefixes.is_current(found, lock):
        return found, False
    made = prefixes.make(lock, wanted.name, wanted.prefix_path, context.where, context.progress)
    folders.remember(context.where, wanted.name, wanted.prefix_path)
    return made, True
