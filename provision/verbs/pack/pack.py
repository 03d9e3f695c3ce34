"""`provision pack`: a locked environment as one file for the nodes of a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from provision import lockfile as locks
from provision.adapters.http import sha256_of
from provision.catalog import required_glibc
from provision.cluster import pack as packs
from provision.cluster.inventory import DEFAULT_PATH, find_inventory, read_inventory
from provision.cluster.pack import Pack, PackCompression, PackFormat, PackInputs
from provision.core.atomic import remove_leftovers_until_quiet, staging_path
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.paths import make_private_directory, owner_writes_only
from provision.core.system_errors import from_system
from provision.core.types import Lock
from provision.environment import portable, runtime_package
from provision.workflow.context import Context
from provision.workflow.ensure import locked_plan, require_existing_lock
from provision.workflow.plan import BuildRequest, Plan, make_plan

# conda's packages have room for 255 bytes where their files name the path of the environment.
MAX_STORE_LENGTH = 120


def plan_pack(
    context: Context,
    plan: Plan,
    pack_format: PackFormat,
    compression: PackCompression,
    inventory: Path | None,
) -> tuple[Lock, PackInputs]:
    """What a plan's lock is to be packed as, for the store that the lab's nodes.yml names."""
    lock = require_existing_lock(plan)
    path = find_inventory(context.folders.envs, inventory)
    store = read_inventory(path).defaults.path if path else DEFAULT_PATH
    if ".." in store.parts or len(str(store)) > MAX_STORE_LENGTH:
        raise InvalidSpec(
            f"{store} cannot be the store on nodes.",
            advice=f"Name a path without `..` and of at most {MAX_STORE_LENGTH} characters.",
        )
    if pack_format == "tar":
        if compression == "lz4":
            raise InvalidSpec(
                "--compression lz4 is for squashfs only.",
                advice="Leave out --compression or --format tar.",
            )
        compression = "gzip"
    packs.check_name(plan.name)
    locks.require_this_platform(plan.name, lock.platforms)
    locks.require_no_editables(lock, "a pack")
    key = packs.pack_key(plan.name, lock.sha256, runtime_package.load().sha256)
    return lock, {
        "name": plan.name,
        "key": key,
        "format": pack_format,
        "compression": compression,
        "install_path": str(store / "envs" / key),
    }


def pack(
    context: Context,
    name: str,
    pack_format: PackFormat,
    compression: PackCompression,
    inventory: Path | None = None,
    signing_key: Path | None = None,
) -> tuple[Pack, bool]:
    """`provision pack`: the pack of an environment's lock, and whether it was made now.

    Reads an existing image, and makes it again if it is damaged. signing_key: of ssh, to sign the
    pack with.
    """
    with locked_plan(context, BuildRequest(name=name)) as plan:
        lock, inputs = plan_pack(context, plan, pack_format, compression, inventory)
        packed = _intact_pack(context, inputs)
        is_new = packed is None
        if packed is None:
            packs.tool_name(inputs["format"])  # before an installation of minutes
            packed = _make(context, plan, lock, inputs)
        else:
            packs.remove_leftovers(packed.image.parent)  # of a run that was killed at its end
            packs.ensure_latest(packed)
        if signing_key is not None:
            packs.sign(packed, signing_key, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        return packed, is_new


def preview(
    context: Context,
    name: str,
    pack_format: PackFormat,
    compression: PackCompression,
    inventory: Path | None = None,
) -> list[tuple[str, str]]:
    """What `pack` would do, stage by stage. Raises what `pack` would raise before its first
    change."""
    plan = make_plan(context, BuildRequest(name=name))
    lock, inputs = plan_pack(context, plan, pack_format, compression, inventory)
    existing = packs.find_pack(context.folders, inputs)
    if existing is not None:
        return [("pack", f"nothing: {existing.image} is current")]
    image = packs.pack_path(context.folders, plan.name) / packs.image_name(inputs)
    tool = packs.tool_name(inputs["format"])
    return [
        ("install", f"{len(lock.packages)} packages for {inputs['install_path']}"),
        ("pack", f"write {image} with {tool} ({inputs['compression']})"),
    ]


def _intact_pack(context: Context, inputs: PackInputs) -> Pack | None:
    existing = packs.find_pack(context.folders, inputs)
    if existing is None:
        return None
    try:
        packs.check_image(existing)
    except IntegrityError as error:
        context.progress.warn(f"{error.message} It will be made again.")
        return None
    return existing


@owner_writes_only()
def _make(context: Context, plan: Plan, lock: Lock, inputs: PackInputs) -> Pack:
    folder = packs.pack_path(context.folders, plan.name)
    runtime, python = runtime_package.load(), lock.find("python")
    with _staging(folder, inputs) as (tree, image):
        digests = portable.install_portable(
            lock,
            plan.name,
            inputs["key"],
            tree,
            PurePosixPath(inputs["install_path"]),
            context.folders,
            context.progress,
            context.mirrors,
        )
        size, files = packs.tree_size(tree)
        tool = packs.tool_name(inputs["format"])
        compression = inputs["compression"]
        context.progress.info(f"writing {packs.image_name(inputs)} with {tool} ({compression})")
        packs.write_image(tree, image, compression)
        sidecar: packs.Sidecar = {
            **inputs,
            "schema": packs.SCHEMA,
            "made_with": tool,
            "size": image.stat().st_size,
            "sha256": sha256_of(image),
            "unpacked_size": size,
            "unpacked_files": files,
            "lock_sha256": lock.sha256,
            "content_hash": lock.content_hash,
            "runtime": {"version": runtime.version, "sha256": runtime.sha256},
            "python": python.version if python else plan.resolution.python,
            "platform": lock.platform,
            "glibc_min": required_glibc(plan.resolution, lock),
            "driver_min": plan.resolution.driver_floor,
            "root": digests["root"],
            "distributions": digests["distributions"],
        }
        packed = packs.publish(image, sidecar, folder)
    packs.remove_older(folder)
    return packed


@contextmanager
def _staging(folder: Path, inputs: PackInputs) -> Iterator[tuple[Path, Path]]:
    """Where the tree and its image are made; nothing remains of them, however this ends. (After a
    SIGKILL, the next pack of this environment removes them.)"""
    tree = staging_path(folder / inputs["key"])
    image = staging_path(folder / packs.image_name(inputs))
    try:
        make_private_directory(folder)
        packs.remove_leftovers(folder)
        yield tree, image
    except KeyboardInterrupt:
        remove_leftovers_until_quiet(folder / inputs["key"])
        raise
    except OSError as error:
        raise from_system(error, folder) from error
    finally:
        packs.remove_leftovers(folder)
