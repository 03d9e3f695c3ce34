"""The verbs beside build: what is there, how it differs, removing it, testing it again, its kernel, its image, its passport."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from provision import image as images
from provision import lockfile as locks
from provision import render
from provision.commands import smoke_runner
from provision.commands.build import ensure_kernel, make_image, smoke_in, write_passport
from provision.commands.ensure import (
    check_place,
    ensure_prefix,
    ensure_runtime,
    planned,
    require_current_lock,
)
from provision.commands.plan import BuildRequest, Context, Plan, plan
from provision.core import atomic, prefix_registry
from provision.core.errors import IntegrityError, InvalidSpec, ToolMissing
from provision.core.file_locks import environment_lock
from provision.core.types import (
    BuildResult,
    Image,
    Kernel,
    Lock,
    Place,
    Prefix,
    SmokeResult,
)
from provision.environment import drift as drifts
from provision.environment import kernel as kernels
from provision.environment import passport, runtime_package
from provision.environment import prefix as prefixes
from provision.resolver import spec

LockState = Literal["current", "other", "none", "unreadable"]


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One line of `provision env list`."""

    name: str
    prefix: Path | None
    lock: LockState  # whether the prefix was made from the lock in envs/
    kernel: bool
    smoke: str


def environments(context: Context) -> list[Environment]:
    """Every environment of this envs folder and every prefix of this user."""
    where = context.where
    made = {
        name: prefixes.find(name, path)
        for name, path in prefix_registry.list_prefixes(where).items()
    }
    described = {path.parent.name for path in where.envs.glob(f"*/{render.SPEC}")}
    kernel_names = {kernel.name for kernel in kernels.list_kernels()}
    return [
        _environment(context, name, made.get(name), name in kernel_names)
        for name in sorted(described | {n for n, p in made.items() if p})
    ]


def _environment(context: Context, name: str, prefix: Prefix | None, kernel: bool) -> Environment:
    """One row; what cannot be read is said in it and does not hide the other rows."""
    folder = context.where.envs / name
    state: LockState = "none"
    with _unreadable(context):
        state = "unreadable"
        lock = locks.read(folder / locks.FILE) if (folder / locks.FILE).exists() else None
        state = (
            "none"
            if not (lock and prefix)
            else "current"
            if prefix.lock_sha256 == lock.sha256
            else "other"
        )
    verdicts = "unreadable"
    with _unreadable(context):
        known = passport.read(folder) or {"smoke": {}}
        verdicts = ", ".join(
            f"{place}: {found['verdict']}" for place, found in known["smoke"].items()
        )
    return Environment(
        name=name, prefix=prefix.path if prefix else None, lock=state, kernel=kernel, smoke=verdicts
    )


@contextlib.contextmanager
def _unreadable(context: Context) -> Iterator[None]:
    try:
        yield
    except IntegrityError as error:
        context.progress.warn(error.message)


def require_prefix(context: Context, name: str, asked: Path | None = None) -> Prefix:
    """The prefix of that name, or ToolMissing with the names there are."""
    spec.check_name(name)
    found = prefixes.find(name, prefix_registry.prefix_path(context.where, name, asked))
    if found is None:
        known = ", ".join(sorted(prefix_registry.list_prefixes(context.where))) or "none"
        raise ToolMissing(
            f"There is no prefix `{name}` here.",
            advice=f"`provision env create {name}` makes it; prefixes: {known}.",
        )
    prefixes.require_interpreter(found)
    return found


def require_lock(context: Context, name: str) -> Lock:
    """The lock of that name, or InvalidSpec."""
    path = context.where.envs / spec.check_name(name) / locks.FILE
    if not path.exists():
        raise InvalidSpec(
            f"There is no {path}.",
            advice=f"`provision lock {name}` makes it; --envs names another folder of environments.",
        )
    return locks.read(path)


def drift(
    context: Context, name: str, *, files: bool, asked: Path | None = None
) -> list[drifts.Drift]:
    """`provision env diff`: how the prefix differs from the lock."""
    return drifts.find_drift(
        require_prefix(context, name, asked), require_lock(context, name), files=files
    )


def remove(context: Context, name: str, *, dry_run: bool) -> list[str]:
    """`provision env remove`: prefixes, kernel, image and its layout; envs/NAME, which is the lab's, stays. Says what went."""
    spec.check_name(name)
    if dry_run:
        return _removable(context, name)[0]
    where = context.where
    with environment_lock(where, name, context.progress, wait=context.wait):
        gone, made, kernel, layout = _removable(context, name)
        if kernel:
            kernels.remove(name)
        for prefix in made:
            prefixes.remove(prefix)
        prefix_registry.forget_prefix(where, name)
        shutil.rmtree(where.packed / name, ignore_errors=True)
        return gone + _remove_image(name, layout)


def _removable(context: Context, name: str) -> tuple[list[str], list[Prefix], Kernel | None, Path]:
    """What there is of an environment on this machine, in words and as products. Raises ToolMissing if there is nothing."""
    where = context.where
    made = [
        prefix
        for path in dict.fromkeys(prefix_registry.prefix_paths(where, name))
        if (prefix := prefixes.find(name, path))
    ]
    kernel = next((found for found in kernels.list_kernels() if found.name == name), None)
    layout = where.images / name
    gone = [f"prefix {prefix.path}" for prefix in made]
    gone += [f"kernel {kernel.path}"] if kernel else []
    gone += [f"image layout {layout}"] if layout.exists() else []
    if not gone:
        known = ", ".join(found.name for found in environments(context)) or "none"
        raise ToolMissing(
            f"There is nothing of `{name}` on this machine.", advice=f"Environments: {known}."
        )
    return gone, made, kernel, layout


def _remove_image(name: str, layout: Path) -> list[str]:
    images.remove_leftovers(layout)  # what a killed build left beside it
    if not layout.exists():
        return []
    client = images.connect_engine()[0]
    removed = images.remove_images(name, client) if client is not None else ()
    shutil.rmtree(layout)
    return [f"image {reference}" for reference in removed]


def build_image(
    context: Context,
    request: BuildRequest,
    outputs: Sequence[images.Output] = (),
    compression: images.Compression = "none",
    tags: Sequence[str] = (),
) -> tuple[Plan, Image, bool]:
    """`provision image build`: the image of an environment whose lock is current; its prefix is made if it is not there.

    outputs: where it goes beside our own folder; none: into the engine. No engine is needed for paths.
    compression: of the layers in OCI layouts and archives. tags: more names in the engine, and the names in outputs.
    """
    for to in outputs:
        images.check_output(to)
    to_engine = not outputs or any(to.path is None for to in outputs)
    client = (
        images.require_engine("name a place on disk with --output")
        if to_engine
        else images.connect_engine()[0]
    )
    with planned(context, request) as wanted:
        lock = require_current_lock(wanted, request).lock
        if lock is None:
            raise InvalidSpec(
                f"{wanted.name} has no lock.",
                advice=f"Run `provision lock {wanted.name}` or `provision build {wanted.name}` first.",
            )
        check_place(wanted)
        prefix, _ = ensure_prefix(context, wanted, lock)
        image, made = make_image(context, wanted, lock, prefix, client, to_engine)
        if client is not None and to_engine:
            for name in tags:
                images.tag_image(client, replace(image, reference=name))
        result = BuildResult(
            name=wanted.name,
            folder=wanted.folder,
            resolution=wanted.resolution,
            pins=wanted.standing_pins(),
            lock=lock,
            prefix=prefix,
            image=image,
            kernel=None,
            smoke=(),
        )
        write_passport(context, result, wanted.asked)
        for to in outputs:
            if to.path is not None:
                method: images.Compression = (
                    compression if to.kind in images.COMPRESSIBLE else "none"
                )
                packed = images.compress_image(
                    image, method, context.where.packed, context.progress
                )
                images.export_image(packed, to, context.progress, tags)
                if packed.manifest_digest != image.manifest_digest:
                    context.progress.say(
                        f"{to}: {packed.manifest_digest}, compressed with {method}"
                    )
        return wanted, image, made


def smoke(
    context: Context, request: BuildRequest, places: tuple[Place, ...], junit: Path | None = None
) -> list[SmokeResult]:
    """`provision smoke`: test a prefix, an image or both, now and here; the passport, where there is one, gets the verdicts.

    junit: a file for the same as JUnit XML. What an earlier run left there goes first, or it would speak for this one.
    """
    smoke_runner.check(request.smoke_request)
    if junit is not None:
        junit.unlink(missing_ok=True)
    wanted = plan(context, request)
    prefix = require_prefix(context, wanted.name, request.prefix)
    known = passport.read(wanted.folder)
    client, image = _image_of(known) if "image" in places else (None, None)
    if "prefix" in places:
        ensure_runtime(context, prefix)
    results = [
        smoke_in(
            context,
            wanted.name,
            place,
            wanted.resolution,
            request.smoke_request,
            prefix,
            image,
            client,
        )
        for place in places
    ]
    if junit is not None:
        atomic.atomic_write(junit, smoke_runner.junit(results))
    if (
        known is not None
        and request.smoke_request.is_whole
        and known["lock"]["sha256"] == prefix.lock_sha256
    ):
        updated = passport.with_smoke(known, results, runtime_package.installed(prefix.path))
        atomic.atomic_write(wanted.folder / passport.FILE, passport.to_text(updated))
    return results


def _image_of(known: Mapping[str, Any] | None) -> tuple[Any, Image]:
    if not known or not known.get("image"):
        raise ToolMissing(
            "The environment has no image.", advice="`provision image build NAME` makes it."
        )
    return images.require_engine("test the prefix with --in prefix"), passport.to_image(known)


def add_kernel(context: Context, request: BuildRequest) -> tuple[Kernel, bool]:
    """`provision kernel add`: register a prefix with this user's Jupyter."""
    wanted = plan(context, request)
    prefix = _startable(context, wanted.name, request)
    ensure_runtime(context, prefix)
    return ensure_kernel(prefix, kernels.display_name(wanted.resolution))


def _startable(context: Context, name: str, request: BuildRequest) -> Prefix:
    """The prefix of that name, or InvalidSpec if Jupyter could not start it."""
    prefix = require_prefix(context, name, request.prefix)
    if not kernels.has_launcher(prefix):
        raise InvalidSpec(
            f"{prefix.path} has no {kernels.LAUNCHER}, without which Jupyter cannot start it.",
            advice=f"Make it with one: `provision build {name} --jupyter --relock`.",
        )
    return prefix


def read_passport(context: Context, name: str) -> dict[str, Any]:
    """`provision passport show`: the passport of an environment."""
    folder = context.where.envs / spec.check_name(name)
    found = passport.read(folder)
    if found is None:
        other = (folder / passport.FILE).exists()  # with a copied folder
        what = (
            f"{folder / passport.FILE} is of another environment"
            if other
            else f"There is no {folder / passport.FILE}"
        )
        raise InvalidSpec(f"{what}.", advice=f"`provision build {name}` writes it.")
    return found


def preview_kernel(context: Context, request: BuildRequest) -> dict[str, Any]:
    """The kernel.json that `kernel add` would install."""
    wanted = plan(context, request)
    return kernels.kernel_json(
        _startable(context, wanted.name, request), kernels.display_name(wanted.resolution)
    )
