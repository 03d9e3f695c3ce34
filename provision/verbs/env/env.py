"""`provision env` and `provision kernel add`: environments on this machine, and their kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from provision.adapters.docker import connect_engine
from provision.cluster.pack import pack_path
from provision.core import disk_usage, prefix_registry
from provision.core.atomic import remove_tree
from provision.core.dataclass import frozen
from provision.core.errors import ToolMissing
from provision.core.file_locks import environment_lock
from provision.core.platforms import image_folders
from provision.core.similar_names import did_you_mean
from provision.environment import drift as drifts
from provision.environment import kernel as kernels
from provision.environment import marker
from provision.environment import prefix as prefixes
from provision.image.docker import removable_images
from provision.image.engine_record import record_path
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


Kind = Literal["prefix", "kernel", "image layout", "image", "packs", "smoke reports"]


@frozen
class Product:
    """Something of an environment on this machine, and its bytes.

    what: a path, or an image's reference. freed: the bytes that no other file shares; None if
    unknown: an image in the engine may share layers with others.
    """

    kind: Kind
    what: str
    size: int = 0
    freed: int | None = 0


def products(context: Context, name: str) -> list[Product]:
    """What `provision env remove` removes. Raises ToolMissing if there is nothing."""
    specs.check_name(name)
    folders = context.folders
    paths = prefix_registry.prefix_paths(folders, name)
    listed = [_product("prefix", path) for path in _prefixes(paths, name)]
    for kernel in kernels.list_kernels():
        is_orphan = kernel.name == name and not kernel.prefix.exists()
        if kernel.prefix in paths or is_orphan:  # also of a pack
            listed.append(Product(kind="kernel", what=str(kernel.path)))
    for folder in image_folders(name):
        if (folders.images / folder).exists():
            layouts = (folders.images / folder, folders.packed / folder)
            listed.append(_product("image layout", *layouts))
    layout = folders.images / name
    if record_path(layout).exists():
        client = connect_engine()[0]
        sizes = {} if client is None else removable_images(layout, client)
        for reference, size in sizes.items():
            listed.append(Product(kind="image", what=reference, size=size, freed=None))
    if (packs := pack_path(folders, name)).exists():
        listed.append(_product("packs", packs))
    if (reports := folders.smoke(name)).exists():
        listed.append(_product("smoke reports", reports))
    if not listed:
        rows = [row.name for row in environments(context)]
        raise ToolMissing(
            f"`{name}` has no prefix, kernel, image or pack on this machine.",
            advice=f"{did_you_mean(name, rows)}Environments: {', '.join(rows) or 'none'}.",
        )
    return listed


def _product(kind: Kind, *paths: Path) -> Product:
    usages = [disk_usage.measure(path) for path in paths]
    size, freed = sum(usage.size for usage in usages), sum(usage.freed for usage in usages)
    return Product(kind=kind, what=str(paths[0]), size=size, freed=freed)


def _prefixes(paths: Sequence[Path], name: str) -> Iterator[Path]:
    """Where this user has installed it: a prefix of a pack belongs to whoever shipped it."""
    for path in dict.fromkeys(paths):
        present = marker.read(path)
        if present is not None and present.name == name and not present.pack:
            yield path


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
    with environment_lock(folders, name, context.progress):
        listed = products(context, name)
        if not confirm(listed):
            return []
        with reported_steps(context.progress) as steps:
            for product in sorted(listed, key=lambda product: product.kind != "kernel"):
                path = Path(product.what)
                if product.kind == "kernel":
                    remove_tree(path)
                    steps.append("removed the kernel")
                elif product.kind == "prefix":
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
