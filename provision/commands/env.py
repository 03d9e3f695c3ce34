"""`provision env` and `provision kernel add`: environments on this machine, and their kernels."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from provision import image as images
from provision import lockfile as locks
from provision import render
from provision.cluster.pack import pack_path
from provision.commands.context import Context, existing_environments, missing_file
from provision.commands.ensure import (
    check_prefix_path,
    ensure_kernel,
    ensure_lock,
    ensure_prefix,
    ensure_runtime,
    locked_plan,
)
from provision.commands.plan import BuildRequest, Plan, make_plan
from provision.core import prefix_registry
from provision.core.errors import IntegrityError, InvalidSpec, ToolMissing
from provision.core.file_locks import environment_lock
from provision.core.types import Kernel, Lock, Prefix
from provision.environment import drift as drifts
from provision.environment import kernel as kernels
from provision.environment import passport as passports
from provision.environment import prefix as prefixes
from provision.resolver import spec as specs

LockState = Literal["current", "other", "none", "unreadable"]


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One line of `provision env list`.

    lock: whether the prefix was made from the lock in the envs folder.
    """

    name: str
    prefix: Path | None
    lock: LockState
    kernel: bool
    smoke: str


def create(context: Context, request: BuildRequest) -> tuple[Prefix, bool]:
    """`provision env create`: the prefix, and whether it was installed now."""
    with locked_plan(context, request) as plan:
        check_prefix_path(plan)
        lock, _, _ = ensure_lock(context, plan)
        return ensure_prefix(context, plan, lock)


def environments(context: Context) -> list[Environment]:
    """`provision env list`: every environment of the envs folder, and every prefix of this user."""
    installed: dict[str, Prefix] = {}
    for name, path in prefix_registry.list_prefixes(context.folders).items():
        prefix = prefixes.find(name, path)
        if prefix is not None:
            installed[name] = prefix
    described = {path.parent.name for path in context.folders.envs.glob(f"*/{render.SPEC}")}
    with_kernel = {kernel.name for kernel in kernels.list_kernels()}
    rows = []
    for name in sorted(described | set(installed)):
        prefix = installed.get(name)
        row = Environment(
            name=name,
            prefix=prefix.path if prefix else None,
            lock=_lock_state(context, name, prefix),
            kernel=name in with_kernel,
            smoke=_verdicts(context, name, prefix),
        )
        rows.append(row)
    return rows


def _lock_state(context: Context, name: str, prefix: Prefix | None) -> LockState:
    path = context.folders.envs / name / locks.FILE
    if not path.exists():
        return "none"
    try:
        lock = locks.read(path)
    except IntegrityError as error:
        context.progress.warn(error.message)
        return "unreadable"
    if prefix is None:
        return "none"
    return "current" if prefix.lock_sha256 == lock.sha256 else "other"


def _verdicts(context: Context, name: str, prefix: Prefix | None) -> str:
    """The verdicts of the passport, with the host of those that were measured on another one.

    None for a prefix of another lock, or at another path than the passport's: nobody tested it.
    """
    try:
        passport = passports.read(context.folders.envs / name)
    except IntegrityError as error:
        context.progress.warn(error.message)
        return "unreadable"
    if passport is None or prefix is None:
        return ""
    tested_lock, tested_path = passport["lock"]["sha256"], passport["prefix"]["path"]
    if tested_lock != prefix.lock_sha256 or tested_path != str(prefix.path):
        return ""
    verdicts = []
    for place, result in passport["smoke"].items():
        host = result["measured_on"]["host"]
        where = "" if host == platform.node() else f" on {host}"
        verdicts.append(f"{place}: {result['verdict']}{where}")
    return ", ".join(verdicts)


def require_prefix(context: Context, name: str, path: Path | None = None) -> Prefix:
    """The prefix of an environment. Raises ToolMissing if it is not installed."""
    specs.check_name(name)
    prefix = prefixes.find(name, prefix_registry.prefix_path(context.folders, name, path))
    if prefix is None:
        advice = f"`provision env create {name}` installs it."
        if not (context.folders.envs / name).is_dir():
            advice = existing_environments(context.folders.envs)
        installed = ", ".join(sorted(prefix_registry.list_prefixes(context.folders))) or "none"
        raise ToolMissing(
            f"Environment `{name}` is not installed on this machine.",
            advice=f"{advice} Installed: {installed}.",
        )
    prefixes.require_interpreter(prefix)
    return prefix


def require_lock(context: Context, name: str) -> Lock:
    """The lock of that name. Raises InvalidSpec if there is none."""
    path = context.folders.envs / specs.check_name(name) / locks.FILE
    if not path.exists():
        raise missing_file(path, advice=f"`provision lock {name}` makes it.")
    return locks.read(path)


def drift(
    context: Context, name: str, *, files: bool, path: Path | None = None
) -> list[drifts.Drift]:
    """`provision env diff`: how the prefix differs from the lock. files: hash every file too."""
    prefix = require_prefix(context, name, path)
    return drifts.find_drift(prefix, require_lock(context, name), files=files)


@dataclass(frozen=True, kw_only=True)
class _Products:
    """What exists of an environment on this machine."""

    prefixes: tuple[Prefix, ...]
    kernel: Kernel | None
    layout: Path | None
    references: tuple[str, ...]  # of images in the Docker engine that this user loaded
    packs: Path | None

    def describe(self) -> list[str]:
        lines = [f"prefix {prefix.path}" for prefix in self.prefixes]
        if self.kernel:
            lines.append(f"kernel {self.kernel.path}")
        if self.layout:
            lines.append(f"image layout {self.layout}")
        lines += [f"image {reference}" for reference in self.references]
        if self.packs:
            lines.append(f"packs {self.packs}")
        return lines


def remove(context: Context, name: str, *, dry_run: bool) -> list[str]:
    """`provision env remove`: prefixes, kernel, image and its layout, packs.

    The lab's own folder in envs stays.

    Returns what was, or would be, removed. Raises ToolMissing if there is nothing.
    """
    specs.check_name(name)
    if dry_run:
        return _products(context, name).describe()
    folders = context.folders
    with environment_lock(folders, name, context.progress, wait=context.wait):
        products = _products(context, name)
        if products.kernel:
            kernels.remove(name)
        for prefix in products.prefixes:
            prefixes.remove(prefix)
        prefix_registry.forget_prefix(folders, name)
        shutil.rmtree(folders.packed / name, ignore_errors=True)
        _remove_image(folders.images / name)
        if products.packs:
            shutil.rmtree(products.packs)
        return products.describe()


def _products(context: Context, name: str) -> _Products:
    paths = dict.fromkeys(prefix_registry.prefix_paths(context.folders, name))
    candidates = [prefixes.find(name, path) for path in paths]
    kernel = next((kernel for kernel in kernels.list_kernels() if kernel.name == name), None)
    layout = context.folders.images / name
    packs = pack_path(context.folders, name)
    products = _Products(
        prefixes=tuple(prefix for prefix in candidates if prefix),
        kernel=kernel,
        layout=layout if layout.exists() else None,
        references=_loaded_references(layout),
        packs=packs if packs.exists() else None,
    )
    if not products.describe():
        names = ", ".join(row.name for row in environments(context)) or "none"
        raise ToolMissing(
            f"`{name}` has no prefix, kernel, image or pack on this machine.",
            advice=f"Environments: {names}.",
        )
    return products


def _loaded_references(layout: Path) -> tuple[str, ...]:
    if not images.record_path(layout).exists():
        return ()
    client = images.connect_engine()[0]
    return () if client is None else images.removable_references(layout, client)


def _remove_image(layout: Path) -> None:
    """Remove an image from disk and from the engine."""
    images.remove_leftovers(layout)  # of a killed build
    if images.record_path(layout).exists():
        client = images.connect_engine()[0]
        if client is not None:
            images.remove_images(layout, client)
    if layout.exists():
        shutil.rmtree(layout)


def add_kernel(context: Context, request: BuildRequest) -> tuple[Kernel, bool]:
    """Register a prefix with this user's Jupyter; whether anything changed."""
    plan = make_plan(context, request)
    prefix = _startable_prefix(context, plan)
    ensure_runtime(context, prefix)
    return ensure_kernel(prefix, kernels.display_name(plan.resolution))


def preview_kernel(context: Context, request: BuildRequest) -> dict[str, Any]:
    """The kernel.json that `add_kernel` would install."""
    plan = make_plan(context, request)
    prefix = _startable_prefix(context, plan)
    return kernels.kernel_json(prefix, kernels.display_name(plan.resolution))


def _startable_prefix(context: Context, plan: Plan) -> Prefix:
    """The prefix of a plan. Raises InvalidSpec if Jupyter could not start it."""
    prefix = require_prefix(context, plan.name, plan.request.prefix)
    if not kernels.has_launcher(prefix):
        raise InvalidSpec(
            f"{prefix.path} has no {kernels.LAUNCHER}, which Jupyter needs to start it.",
            advice=f"Build it with Jupyter: `provision build {plan.name} --jupyter --relock`.",
        )
    return prefix
