"""Environments that are installed on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provision import image as images
from provision import lockfile as locks
from provision.core import prefix_registry
from provision.core.atomic import remove_tree
from provision.core.errors import ToolMissing
from provision.core.process import run
from provision.core.types import Lock, Prefix
from provision.environment import prefix as prefixes
from provision.resolver import spec as specs
from provision.workflow.context import Context, existing_environments, missing_file
from provision.workflow.ensure import check_prefix_path, ensure_lock, ensure_prefix, locked_plan
from provision.workflow.passport import write_passport
from provision.workflow.plan import BuildRequest
from provision.workflow.project import other_projects
from provision.workflow.smoke.runner import RUNTIME
from provision.workflow.trust import require_trusted_prefix


def create(context: Context, request: BuildRequest) -> tuple[Prefix, bool]:
    """`provision env create`: the prefix, and whether it was installed now."""
    with locked_plan(context, request) as plan:
        check_prefix_path(context, plan)
        plan, lock, is_new_lock, _ = ensure_lock(context, plan)
        prefix, is_new = ensure_prefix(context, plan, lock)
        write_passport(context, plan, lock, prefix, is_new_lock=is_new_lock)
        return prefix, is_new


def require_prefix(context: Context, name: str, path: Path | None = None) -> Prefix:
    """The prefix of an environment. Raises ToolMissing if it is not installed, SystemRefused if
    another user could change it."""
    specs.check_name(name)
    prefix = prefixes.find(name, prefix_registry.prefix_path(context.folders, name, path))
    if prefix is None:
        advice = f"`provision env create {name}` installs it."
        if not (context.folders.envs / name).is_dir():
            advice = existing_environments(context.folders.envs, name)
        installed = ", ".join(sorted(prefix_registry.list_prefixes(context.folders))) or "none"
        raise ToolMissing(
            f"Environment `{name}` is not installed on this machine.",
            advice=f"{advice} {other_projects(context.folders, name)}Installed: {installed}.",
        )
    prefixes.require_interpreter(prefix)
    require_trusted_prefix(context.folders, prefix.path)
    return prefix


def require_lock(context: Context, name: str) -> Lock:
    """The lock of that name. Raises InvalidSpec if there is none."""
    path = context.folders.envs / specs.check_name(name) / locks.FILE
    if not path.exists():
        raise missing_file(path, advice=f"`provision lock {name}` makes it.")
    return locks.read(path)


def remove_image(layout: Path) -> None:
    """Remove an image of this user from disk and from the engine."""
    images.remove_leftovers(layout)  # of a killed build
    if images.record_path(layout).exists():
        client = images.connect_engine()[0]
        if client is not None:
            images.remove_images(layout, client)
    remove_tree(layout)


def tree_digests(tree: Path, *, deep: bool) -> Mapping[str, Any]:
    """The digests of a tree, as nodes compute them."""
    command = [sys.executable, str(RUNTIME), "digests", str(tree)]
    if deep:
        command.append("--deep")
    document: dict[str, Any] = json.loads(run(command).stdout)
    return document
