"""What a verb would do, worked out without changing anything: for --dry-run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from provision import image as images
from provision import lockfile as locks
from provision import render
from provision.commands.ensure import (
    check_place,
    check_unedited,
    dockerfile_texts,
    edited_files,
    input_texts,
    require_current_lock,
    solve,
)
from provision.commands.plan import BuildRequest, Context, Plan, plan
from provision.core.tempdirs import temporary_directory
from provision.core.types import LockedPackage
from provision.environment import drift as drifts
from provision.environment import kernel
from provision.environment import prefix as prefixes


def build_preview(
    context: Context, request: BuildRequest, outputs: Sequence[images.Output] = ()
) -> list[dict[str, str]]:
    """Stage by stage, what `build` would do now. Raises what `build` would raise before its first change."""
    wanted = require_current_lock(plan(context, request), request)
    check_place(wanted)
    if request.kernel:
        kernel.check_name(wanted.name)
    steps = [
        {"stage": "render", "would": _render(wanted)},
        {"stage": "lock", "would": _lock(wanted, request)},
    ]
    steps.append({"stage": "prefix", "would": _prefix(wanted, request)})
    steps.append({"stage": "image", "would": _image(wanted, request, outputs)})
    steps.append(
        {
            "stage": "smoke",
            "would": "test the prefix, and the image if there is one"
            if request.smoke
            else "skip (--no-smoke)",
        }
    )
    steps.append({"stage": "kernel", "would": _kernel(wanted, request)})
    return steps


def _render(wanted: Plan) -> str:
    if wanted.edited:
        return f"use {edited_files(wanted)} as edited by hand"
    files = render.pending(wanted.folder, wanted.texts)
    return (
        f"write {', '.join(files)} in {wanted.folder}"
        if files
        else "nothing: all files are as rendered"
    )


def _lock(wanted: Plan, request: BuildRequest) -> str:
    if wanted.lock is not None and wanted.lock_is_current and not request.relock:
        return f"nothing: {len(wanted.lock.packages)} packages are locked"
    pins = ", ".join(pin.requirement for pin in wanted.resolution.pins)
    return f"solve {pins} with Python from {'this machine' if wanted.python_from == 'host' else ', '.join(wanted.resolution.channels)}"


def _prefix(wanted: Plan, request: BuildRequest) -> str:
    found = prefixes.find(wanted.name, wanted.prefix_path)
    if (
        wanted.lock is not None
        and wanted.lock_is_current
        and not request.relock
        and drifts.is_current(found, wanted.lock)
    ):
        return f"nothing: {wanted.prefix_path} is as locked"
    return f"{'replace' if found else 'make'} {wanted.prefix_path}"


def _image(wanted: Plan, request: BuildRequest, outputs: Sequence[images.Output]) -> str:
    if request.image == "skip":
        return "skip (--no-image)"
    base = images.chosen_base(wanted.resolution.spec.base)
    if any(to.path is not None for to in outputs):
        for to in outputs:
            images.check_output(to)
        return f"make an image of it on {base}; {', '.join('load it' if to.path is None else f'write {to}' for to in outputs)}"
    if images.is_on_disk(base):
        return f"make an image of it on {base}, and load it if a Docker engine answers"
    if request.image == "demand":
        return f"make and load an image of it on {base}"
    return f"make and load an image of it on {base}, if a Docker engine answers and has or gets that base"


def _kernel(wanted: Plan, request: BuildRequest) -> str:
    if not request.kernel:
        return "skip (--no-kernel)"
    if not wanted.resolution.spec.jupyter:
        return "skip (--no-jupyter)"
    return f"register {kernel.display_name(wanted.resolution)!r}"


def render_preview(context: Context, request: BuildRequest) -> tuple[Plan, list[str]]:
    """The files that `render` would write now, those whose edits it would undo said. Raises what it would raise."""
    wanted = plan(context, request)
    check_unedited(wanted)
    texts = input_texts(wanted)
    if wanted.lock is not None and wanted.lock_is_current:
        dockerfile = dockerfile_texts(wanted, wanted.lock)
        texts |= dockerfile if request.force or not render.edited(wanted.folder, dockerfile) else {}
    lost = render.edited(wanted.folder, texts)
    return wanted, [
        f"{name} (undoing an edit by hand)" if name in lost else name
        for name in render.pending(wanted.folder, texts)
    ]


def lock_preview(context: Context, request: BuildRequest) -> tuple[LockedPackage, ...]:
    """The packages that `lock` would write now. A local channel that it would need is made in a folder that goes away."""
    wanted = require_current_lock(plan(context, request), request)
    if wanted.lock is not None and wanted.lock_is_current and not request.relock:
        return tuple(
            package for seen in locks.read_platforms(wanted.lock.path) for package in seen.packages
        )
    with temporary_directory("preview") as folder:
        elsewhere = dataclasses.replace(
            context, where=dataclasses.replace(context.where, data=folder)
        )
        channels = (
            context.where.channels if context.where.channels.exists() else elsewhere.where.channels
        )
        return solve(elsewhere, wanted, request, channels)
