"""`provision env` and `provision kernel add`: environments on this machine, and their kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from provision import image as images
from provision.cluster.pack import pack_path
from provision.core import disk_usage, prefix_registry
from provision.core.atomic import remove_tree
from provision.core.dataclass import frozen
from provision.core.errors import ToolMissing
from provision.core.file_locks import environment_lock
from provision.core.platforms import image_folders
from provision.core.similar_names import did_you_mean
from provision.core.types import Kernel
from provision.environment import drift as drifts
from provision.environment import kernel as kernels
from provision.environment import marker
from provision.environment import prefix as prefixes
from provision.resolver import spec as specs
from provision.workflow.context import Context, reported_steps
from provision.workflow.environments import environments
from provision.workflow.installed import remove_image, require_lock
from provision.workflow.project import require_prefix


def drift(
    context: Context, name: str, *, files: bool, path: Path | None = None
) -> list[drifts.Drift]:
    """`provision env diff`: how the prefix differs from the lock. files: hash every file too."""
    prefix = require_prefix(context.folders, name, path)
    lock = require_lock(context, name)
    with context.progress.meter("hashing every file" if files else "comparing packages", 0):
        return drifts.find_drift(prefix, lock, files=files)


@frozen
class Product:
    """Something of an environment on this machine, and its bytes.

    what: a path, or an image's reference. freed: the bytes that no other file shares; None if
    unknown: an image in the engine may share layers with others.
    """

    kind: Literal["prefix", "kernel", "image layout", "image", "packs", "smoke reports"]
    what: str
    size: int = 0
    freed: int | None = 0


def products(context: Context, name: str) -> list[Product]:
    """What `provision env remove` removes. Raises ToolMissing if there is nothing."""
    specs.check_name(name)
    folders = context.folders
    listed = []
    for path in _prefixes(context, name):
        listed.append(_product("prefix", path))
    registered = prefix_registry.prefix_paths(folders, name)  # also of a pack
    for kernel in kernels.list_kernels():
        if kernel.prefix in registered or _is_orphan(kernel, name):
            listed.append(Product(kind="kernel", what=str(kernel.path)))
    for folder in image_folders(name):
        if (folders.images / folder).exists():
            layouts = (folders.images / folder, folders.packed / folder)
            listed.append(_product("image layout", *layouts))
    layout = folders.images / name
    if images.record_path(layout).exists():
        client = images.connect_engine()[0]
        sizes = {} if client is None else images.removable_images(layout, client)
        for reference, size in sizes.items():
            listed.append(Product(kind="image", what=reference, size=size, freed=None))
    packs = pack_path(folders, name)
    if packs.exists():
        listed.append(_product("packs", packs))
    if folders.smoke(name).exists():
        listed.append(_product("smoke reports", folders.smoke(name)))
    if not listed:
        rows = [row.name for row in environments(context)]
        raise ToolMissing(
            f"`{name}` has no prefix, kernel, image or pack on this machine.",
            advice=f"{did_you_mean(name, rows)}Environments: {', '.join(rows) or 'none'}.",
        )
    return listed


def _is_orphan(kernel: Kernel, name: str) -> bool:
    """Whether the kernel of that name starts a prefix that does not exist any more."""
    return kernel.name == name and not kernel.prefix.exists()


def _product(
    kind: Literal["prefix", "image layout", "packs", "smoke reports"], path: Path, *more_paths: Path
) -> Product:
    usage = disk_usage.measure(path)
    for other in more_paths:
        usage += disk_usage.measure(other)
    return Product(kind=kind, what=str(path), size=usage.size, freed=usage.freed)


def _prefixes(context: Context, name: str) -> list[Path]:
    """Where this user has installed it: a prefix of a pack belongs to whoever shipped it."""
    paths = dict.fromkeys(prefix_registry.prefix_paths(context.folders, name))
    installed = []
    for path in paths:
        present = marker.read(path)
        if present is not None and present.name == name and not present.pack:
            installed.append(path)
    return installed


def remove(
    context: Context, name: str, *, confirm: Callable[[Sequence[Product]], bool]
) -> list[Product]:
    """`provision env remove`: prefixes, kernel, image and its layout, packs.

    The lab's own folder in envs stays. confirm: is given what would be removed, while no other
    process can change it, and decides. Returns what was removed; empty if nothing was to be.
    Raises ToolMissing if there is nothing.
    """
    folders = context.folders
    products(context, name)  # before a lock file is created for a name that does not exist
    with environment_lock(folders, name, context.progress, wait=context.wait):
        listed = products(context, name)
        if not confirm(listed):
            return []
        with reported_steps(context.progress) as steps:
            for product in listed:
                if product.kind == "kernel":
                    remove_tree(Path(product.what))
                    steps.append("removed the kernel")
            for path in _prefixes(context, name):
                _warn_of_link(context, path)
                prefixes.remove(path)
                steps.append(f"removed {path}")
            prefix_registry.forget_prefix(folders, name)
            for path in (folders.packed, folders.images, folders.packs, folders.smoke("")):
                _warn_of_link(context, path / name)
            for image in image_folders(name):
                remove_tree(folders.packed / image)
                remove_image(folders.images / image)
            if any(product.kind == "image" for product in listed):
                steps.append("removed the image")
            for folder in (pack_path(folders, name), folders.smoke(name), folders.passport(name)):
                remove_tree(folder)
        return listed


def _warn_of_link(context: Context, path: Path) -> None:
    """What a link names may be anybody's, so only the link is removed."""
    if path.is_symlink():
        context.progress.warn(f"{path} is a link: it is removed, and {path.resolve()} stays")
