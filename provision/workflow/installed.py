"""Environments that are installed on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provision import lockfile as locks
from provision.adapters.docker import connect_engine
from provision.core.atomic import remove_tree
from provision.core.process import run
from provision.core.types import Lock, Prefix
from provision.image.docker import remove_images
from provision.image.engine_record import record_path
from provision.image.oci_layout import remove_leftovers
from provision.resolver import spec as specs
from provision.workflow.context import Context, missing_file
from provision.workflow.ensure import check_prefix_path, ensure_lock, ensure_prefix, locked_plan
from provision.workflow.passport import write_passport
from provision.workflow.plan import BuildRequest
from provision.workflow.smoke.runner import RUNTIME


def create(context: Context, request: BuildRequest) -> tuple[Prefix, bool]:
    """`provision env create`: the prefix, and whether it was installed now."""
    with locked_plan(context, request) as plan:
        check_prefix_path(context, plan)
        plan, lock, is_new_lock, _ = ensure_lock(context, plan)
        prefix, is_new = ensure_prefix(context, plan, lock)
        write_passport(context, plan, lock, prefix, is_new_lock=is_new_lock)
        return prefix, is_new


def require_lock(context: Context, name: str) -> Lock:
    """The lock of that name. Raises InvalidSpec if there is none."""
    path = context.folders.envs / specs.check_name(name) / locks.FILE
    if not path.exists():
        raise missing_file(path, advice=f"`provision lock {name}` makes it.")
    return locks.read(path)


def remove_image(layout: Path) -> None:
    """Remove an image of this user from disk and from the engine."""
    remove_leftovers(layout)  # of a killed build
    if record_path(layout).exists():
        client = connect_engine()[0]
        if client is not None:
            remove_images(layout, client)
    remove_tree(layout)


def tree_digests(tree: Path, *, deep: bool) -> Mapping[str, Any]:
    """The digests of a tree, as nodes compute them."""
    command = [sys.executable, str(RUNTIME), "digests", str(tree)]
    if deep:
        command.append("--deep")
    document: dict[str, Any] = json.loads(run(command).stdout)
    return document
