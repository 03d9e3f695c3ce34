"""`provision pack`: a locked environment as one file for the nodes of a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from provision import lockfile as locks
from provision.cluster import pack as packs
from provision.cluster.inventory import DEFAULT_PATH, find_inventory, read_inventory
from provision.cluster.pack import Pack, PackCompression, PackFormat, PackPlan
from provision.core.atomic import remove_leftovers_until_quiet, staging_path
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.paths import make_private_directory, owner_writes_only
from provision.core.system_errors import from_system
from provision.core.types import Lock
from provision.environment import portable, runtime_package
from provision.environment.prefix import QUIET_S, QUIET_TIMEOUT_S
from provision.workflow.context import Context
from provision.workflow.ensure import locked_plan, require_existing_lock
from provision.workflow.installed import tree_digests
from provision.workflow.plan import BuildRequest, Plan, make_plan
from provision.workflow.trust import require_trusted_path

# conda's packages have room for 255 bytes where their files name the path of the environment.
MAX_STORE_LENGTH = 120


@dataclass(frozen=True, kw_only=True)
class PackOptions:
    """How to pack. store: the folder of the store on the nodes."""

    format: PackFormat = "squashfs"
    fast: bool = False
    store: PurePosixPath = DEFAULT_PATH

    def __post_init__(self) -> None:
        path = str(self.store)
        is_plain = path.isprintable() and ".." not in self.store.parts
        if not self.store.is_absolute() or not is_plain or len(path) > MAX_STORE_LENGTH:
            raise InvalidSpec(
                f"{path!r} cannot be the store on nodes.",
                advice=f"Name an absolute path of at most {MAX_STORE_LENGTH} characters.",
            )
        if self.fast and self.format != "squashfs":
            raise InvalidSpec(
                "--compression lz4 is for squashfs only.",
                advice="Leave out --compression or --format tar.",
            )


def default_store(context: Context, inventory: Path | None) -> PurePosixPath:
    """The folder of the store on the nodes, as the lab's nodes.yml has it."""
    path = find_inventory(context.folders.envs, inventory)
    return read_inventory(path).defaults.path if path else DEFAULT_PATH


def pack(
    context: Context,
    name: str,
    options: PackOptions,
    output: Path | None = None,
    inventory: Path | None = None,
    key: Path | None = None,
) -> tuple[Pack, bool]:
    """`provision pack`: the pack of an environment's lock, and whether it was made now.

    Reads an existing image, and makes it again if it is damaged. output: another folder to put it
    into, which nobody may write to but those whom the lab's nodes.yml trusts. key: of ssh, to sign
    the pack with.
    """
    with locked_plan(context, BuildRequest(name=name)) as plan:
        packed, is_new = ensure_pack(context, plan, options, read_image=True)
        if key is not None:
            packs.sign(packed, key, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        if output is not None:
            require_trusted_path(context.folders, output.absolute(), inventory)
            packed = packs.export(packed, output.absolute())
        return packed, is_new


def preview(context: Context, name: str, options: PackOptions) -> list[tuple[str, str]]:
    """What `pack` would do, stage by stage. Raises what `pack` would raise before its first
    change."""
    plan = make_plan(context, BuildRequest(name=name))
    lock = require_existing_lock(plan)
    pack_plan = _plan_pack(plan, lock, options)
    existing = packs.find_pack(context.folders, plan.name, pack_plan.key)
    if existing is not None and pack_plan.is_made(existing):
        return [("pack", f"nothing: {existing.image} is current")]
    image = packs.pack_path(context.folders, plan.name) / pack_plan.filename
    tool = packs.tool_name(pack_plan.format)
    return [
        ("install", f"{len(lock.packages)} packages for {pack_plan.install_path}"),
        ("pack", f"write {image} with {tool} ({pack_plan.compression})"),
    ]


def ensure_pack(
    context: Context, plan: Plan, options: PackOptions, *, read_image: bool = False
) -> tuple[Pack, bool]:
    """The pack of a plan's lock, and whether it was made now. The caller holds the environment's
    lock.

    read_image: read an existing image instead of trusting its size.
    """
    lock = require_existing_lock(plan)
    pack_plan = _plan_pack(plan, lock, options)
    existing = packs.find_pack(context.folders, plan.name, pack_plan.key)
    is_current = existing is not None and pack_plan.is_made(existing)
    if existing is not None and is_current and read_image:
        is_current = _is_intact(context, existing)
    if existing is not None and is_current:
        packs.remove_leftovers(existing.image.parent)  # of a run that was killed at its end
        packs.ensure_latest(existing)
        return existing, False
    packs.tool_name(pack_plan.format)  # before an installation of minutes
    return _make(context, plan, lock, pack_plan), True


def _is_intact(context: Context, existing: Pack) -> bool:
    try:
        packs.check_image(existing)
    except IntegrityError as error:
        context.progress.warn(f"{error.message} It will be made again.")
        return False
    return True


def _plan_pack(plan: Plan, lock: Lock, options: PackOptions) -> PackPlan:
    packs.check_name(plan.name)
    locks.require_this_platform(plan.name, lock.platforms)
    locks.require_no_editables(lock, "a pack")
    key = packs.pack_key(plan.name, lock.sha256, runtime_package.load().sha256)
    compression: PackCompression = "lz4" if options.fast else "zstd"
    if options.format == "tar":
        compression = "gzip"
    return PackPlan(
        name=plan.name,
        key=key,
        format=options.format,
        compression=compression,
        install_path=packs.install_path(options.store, key),
    )


@owner_writes_only()
def _make(context: Context, plan: Plan, lock: Lock, pack_plan: PackPlan) -> Pack:
    folder = packs.pack_path(context.folders, plan.name)
    with _staging(folder, pack_plan) as (tree, image):
        portable.install_portable(
            lock,
            plan.name,
            pack_plan.key,
            tree,
            pack_plan.install_path,
            context.folders,
            context.progress,
            context.mirrors,
        )
        context.progress.info("reading every file")
        size, files = packs.tree_size(tree)
        facts = packs.TreeFacts(
            size=size,
            files=files,
            deep=tree_digests(tree, deep=True),
            shallow=tree_digests(tree, deep=False),
        )
        tool = packs.tool_name(pack_plan.format)
        context.progress.info(f"writing {pack_plan.filename} with {tool} ({pack_plan.compression})")
        packs.write_image(tree, image, pack_plan.compression)
        runtime = runtime_package.load()
        sidecar = packs.describe(
            pack_plan,
            lock,
            plan.resolution,
            {"version": runtime.version, "sha256": runtime.sha256},
            facts,
            image,
        )
        packed = packs.publish(image, sidecar, folder)
    packs.remove_older(folder)
    return packed


@contextmanager
def _staging(folder: Path, pack_plan: PackPlan) -> Iterator[tuple[Path, Path]]:
    """Where the tree and its image are made; nothing remains of them, however this ends. (After a
    SIGKILL, the next pack of this environment removes them.)"""
    tree = staging_path(folder / pack_plan.key)
    image = staging_path(folder / pack_plan.filename)
    try:
        make_private_directory(folder)
        packs.remove_leftovers(folder)
        yield tree, image
    except KeyboardInterrupt:
        path = folder / pack_plan.key
        remove_leftovers_until_quiet(path, quiet_s=QUIET_S, timeout_s=QUIET_TIMEOUT_S)
        raise
    except OSError as error:
        raise from_system(error, folder) from error
    finally:
        packs.remove_leftovers(folder)
