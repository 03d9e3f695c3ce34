"""Working a request out (`Plan`): which environment, from which facts, with whose Python, as which texts. Changes nothing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from provision import channel, render, sources
from provision import lockfile as locks
from provision.adapters import conda, http, uv
from provision.commands import request, smoke_runner
from provision.core import prefix_registry
from provision.core.errors import (
    IntegrityError,
    InvalidSpec,
    NoSuchBuild,
    StaleLock,
    ToolMissing,
    Unreachable,
)
from provision.core.mirrors import MANIFEST, NO_MIRRORS, Mirrors, MirrorSetting
from provision.core.paths import Folders
from provision.core.spec_fields import Spec
from provision.core.types import Lock, Manager, Pin, Platform, Progress, Resolution
from provision.resolver import spec

ImageMode = Literal["auto", "demand", "skip"]
PythonSource = Literal["channel", "host"]


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where to work and whom to tell."""

    where: Folders
    progress: Progress
    solver: conda.Solver = field(
        default_factory=conda.Solver
    )  # keeps what it reads of channels, for all that is solved
    wait: bool = True

    @property
    def mirrors(self) -> Mirrors:
        return self.solver.mirrors

    @functools.cached_property
    def templates(self) -> render.Templates:
        """Of generated files; says which of them are the lab's own."""
        return render.Templates(self.where.templates, self.progress.say)


def mirrors_of(wanted: Sequence[MirrorSetting]) -> Mirrors:
    """Mirrors whose names and folders are looked up when they are first used."""

    def manifest(folder: str) -> str:
        with http.HttpClient(uv.pip_settings() if not folder.startswith("file:") else None) as web:
            return web.text(folder + MANIFEST)

    return (
        Mirrors(wanted, channel_url=conda.channel_url, manifest=manifest) if wanted else NO_MIRRORS
    )


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """What the command line asked for beyond the spec."""

    name: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    prefix: Path | None = None
    image: ImageMode = "auto"
    smoke: bool = True
    kernel: bool = True
    relock: bool = False
    solver: locks.SolverName | None = None  # an executable that solves in place of ours
    force: bool = False
    smoke_request: smoke_runner.SmokeRequest = field(default_factory=smoke_runner.SmokeRequest)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A request worked out."""

    folder: Path
    resolution: Resolution
    asked: Mapping[str, Any]
    texts: Mapping[str, str]  # of what is locked, as it will stand: hand edits respected
    edited: tuple[str, ...]
    inputs: locks.LockInputs
    lock: Lock | None
    lock_is_current: bool
    python_from: PythonSource
    prefix_path: Path
    templates: render.Templates

    @property
    def name(self) -> str:
        return self.resolution.spec.name

    def standing_pins(self) -> tuple[Pin, ...]:
        """The pins that are in environment.yml as it stands: those of the resolution, and what was written in by hand."""
        known = {(pin.manager, pin.requirement): pin for pin in self.resolution.pins}
        conda_rows: list[tuple[Manager, str]] = [("conda", text) for text in self.inputs.conda]
        pip_rows: list[tuple[Manager, str]] = [("pip", text) for text in self.inputs.pip]
        lab = self.templates.lab_file(render.ENVIRONMENT)
        where = (
            f"{lab.parent.name}/{lab.name}"
            if lab and render.ENVIRONMENT not in self.edited
            else render.ENVIRONMENT
        )
        return tuple(known.get(row) or _by_hand(*row, where) for row in conda_rows + pip_rows)


def _by_hand(manager: Manager, requirement: str, where: str) -> Pin:
    return Pin(
        manager=manager,
        requirement=requirement,
        reason=f"written into {where} by hand",
        source=where,
    )


def name_of(context: Context, wish: BuildRequest) -> str:
    """The environment that a request is about: what must be held before anything else is looked at."""
    return _spec(context, wish).name


def plan(context: Context, wish: BuildRequest) -> Plan:
    """Work a request out without changing anything. May ask whether a channel answers, if nothing says where Python is from.

    The caller holds the environment's name if it means to act on the answer.
    """
    wanted = _spec(context, wish)
    folder = context.where.envs / wanted.name
    lock = _known_lock(context, folder / locks.FILE, wish)
    python_from, wanted = _python_from(context, wanted, None if wish.relock else lock)
    resolution = request.resolved(wanted)
    _tell_warnings(context, resolution)
    texts = render.render_inputs(resolution, context.templates)
    edited = [] if wish.force else render.edited(folder, texts)
    if edited:
        _refuse_lost_options(folder, wish, resolution, edited)
    standing = {**texts, **{name: render.read(folder / name) for name in edited}}
    inputs = locks.read_inputs(
        standing[render.ENVIRONMENT], standing[render.VIRTUAL_PACKAGES], folder, as_of=wanted.as_of
    )
    if edited or context.templates.lab_file(render.ENVIRONMENT):
        locks.check_inputs(inputs, folder)
    return Plan(
        folder=folder,
        resolution=resolution,
        asked=spec.content(resolution.spec),
        texts=standing,
        edited=tuple(edited),
        inputs=inputs,
        lock=lock,
        lock_is_current=lock is not None
        and lock.python_from == python_from
        and _fits(lock, inputs),
        python_from=python_from,
        prefix_path=prefix_registry.prefix_path(context.where, wanted.name, wish.prefix),
        templates=context.templates,
    )


def _known_lock(context: Context, path: Path, wish: BuildRequest) -> Lock | None:
    """The lock that is there. One that cannot be read stands in the way of everything but being replaced."""
    if not path.exists():
        return None
    try:
        return locks.read(path)
    except IntegrityError as error:
        if not wish.relock:
            raise
        context.progress.warn(f"{error.message} It is replaced.")
        return None


def only_the_day_moved(wanted: Plan) -> bool:
    """Whether nothing but `as_of` keeps a lock from being current."""
    lock = wanted.lock
    if lock is None or lock.python_from != wanted.python_from or lock.as_of == wanted.inputs.as_of:
        return False
    then = locks.read_inputs(
        wanted.inputs.environment, wanted.inputs.virtual_packages, wanted.folder, as_of=lock.as_of
    )
    return _fits(lock, then)


def _fits(lock: Lock, inputs: locks.LockInputs) -> bool:
    """Whether a lock was made from these inputs; a lock of another tool says so by conda-lock's content hash alone."""
    if lock.inputs_sha256:
        return lock.inputs_sha256 in (inputs.sha256, inputs.former_sha256)
    return lock.content_hash == locks.content_hashes(inputs).get(lock.platform)


def _refuse_lost_options(
    folder: Path, wish: BuildRequest, resolution: Resolution, edited: list[str]
) -> None:
    """An edited file is used as it is, so options that would change it cannot be honored; say so instead of dropping them."""
    path = folder / render.SPEC
    given = {
        key: value for key, value in wish.options.items() if value not in (None, (), [], False)
    }
    if not given or not path.exists():
        return
    before = request.resolved(spec.combine(spec.read(path), {}, name=folder.name)).spec
    if dataclasses.replace(before, base=None, as_of=None) != dataclasses.replace(
        resolution.spec, base=None, as_of=None
    ):
        raise StaleLock(
            f"{', '.join(str(folder / name) for name in edited)} is edited by hand, so {', '.join(sorted(given))} would have no effect.",
            advice=f"Write it into the file, or undo the edit: provision render {folder.name} --force",
        )


def _spec(context: Context, wish: BuildRequest) -> Spec:
    return request.checked(_combined(context, wish))


def _combined(context: Context, wish: BuildRequest) -> Spec:
    """Options over the environment's own spec.yml. Without a name the options must say enough to find one."""
    name = spec.check_name(wish.name) if wish.name else _named(context, wish)
    path = context.where.envs / name / render.SPEC
    if not path.exists() and not wish.options.get("torch"):
        known = sorted(found.parent.name for found in context.where.envs.glob(f"*/{render.SPEC}"))
        raise InvalidSpec(
            f"There is no {path}.",
            advice=f"Environments here: {', '.join(known) or 'none'}; or give --torch and --cuda.",
        )
    return request.combined(path, wish.options, name=name)


def _named(context: Context, wish: BuildRequest) -> str:
    """The name that options alone lead to. It holds the Python version, which may be this machine's where no channel answers."""
    draft = spec.combine({}, wish.options, name="")
    usual = request.resolved(draft).spec.name
    if draft.python is not None or (context.where.envs / usual / render.SPEC).exists():
        return usual
    return request.resolved(_python_from(context, draft, None)[1]).spec.name


def _python_from(context: Context, wanted: Spec, lock: Lock | None) -> tuple[PythonSource, Spec]:
    """Decide once, and for an existing lock never again, where Python comes from; the answer is part of the lock."""
    if wanted.python_from == "channel" or (
        wanted.python_from == "auto" and lock and lock.python_from == "channel"
    ):
        return "channel", wanted
    if wanted.python_from == "auto" and lock is None:
        resolution = request.resolved(wanted)
        silent = _silent(context.solver, resolution.channels, resolution.platforms[0])
        if len(silent) < len(resolution.channels):
            return "channel", wanted
        reasons = "; ".join(f"{name}: {reason}" for name, reason in silent.items())
        if sources.by_name(resolution.source).manager == "conda":
            from_index = [source.name for source in sources.REGISTRY if source.manager == "pip"]
            raise Unreachable(
                f"Source {resolution.source} needs its conda channels, and none answers ({reasons}).",
                advice=f"Name a mirror with --mirror, or use --source {' or '.join(from_index)}.",
            )
        _warn_once(
            context,
            f"no conda channel answers ({reasons}): Python comes from this machine, and the lock will not be portable",
        )
    return "host", _fits_host(wanted)


@functools.cache
def _silent(solver: conda.Solver, channels: tuple[str, ...], platform: Platform) -> dict[str, str]:
    """Asked once per run: naming and planning must not see two answers."""
    return solver.unreachable_channels(channels, platform)


def _tell_warnings(context: Context, resolution: Resolution) -> None:
    """What is known to go wrong with a combination, or is not known of it."""
    for found in resolution.warnings:
        _warn_once(context, f"{found.reason} ({found.source}). {found.value}".strip())


_warned: set[str] = set()


def _warn_once(context: Context, text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        context.progress.warn(text)


def _fits_host(wanted: Spec) -> Spec:
    """The request with this machine's Python, or ToolMissing if that is not what was asked for or has no build."""
    have = channel.host_minor()
    if wanted.python is not None and wanted.python != have:
        raise ToolMissing(
            f"Python {wanted.python} was asked for, but this machine's Python, which would be packaged, is {have}.",
            advice=f"Ask for --python {have}, run provision with Python {wanted.python}, or name a channel that answers with --channel.",
        )
    request.resolved(wanted)  # what would not exist with any Python is refused for that
    fitting = dataclasses.replace(wanted, python=have)
    try:
        request.resolved(fitting)
    except NoSuchBuild as error:
        raise ToolMissing(
            f"Python would have to come from this machine, which has {have}: {error.message}",
            advice=f"{error.advice} Run provision with one of them, or name a channel that answers with --channel.",
        ) from error
    return fitting
