"""The layers of an image: reused from a layout that has them, or built from the files of its
packages."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path

from provision.core.dataclass import frozen
from provision.core.host import usable_cpus
from provision.core.system_errors import require_space
from provision.core.types import Layer, Progress
from provision.image import base, layer_cache, layers, oci_layout, tree_files
from provision.image.cache_key import Recipe
from provision.image.layer_cache import CachedLayer
from provision.image.layer_groups import BASE_GROUP, CODE_GROUP, GROUPS, PROVISION_GROUP
from provision.image.layers import LayerEntry

PACKAGES = "org.provision.packages"  # the annotation with Recipe.packages_digest
SPACE_ADVICE = "Free space there and run the same command again, or build without --image."


@frozen
class LayerBuild:
    """One build. layout: what it will replace. new: the staging directory that it fills. install: fills
    another directory with the packages of the lock. byte_code: the prefix that has it. keys: cache
    keys of the finished layers by their digests."""

    recipe: Recipe
    byte_code: Path | None
    layout: Path
    new: Path
    install: Callable[[Path], None]
    progress: Progress
    keys: dict[str, str] = field(default_factory=dict)

    def layers(self) -> list[Layer]:
        """All layers, from the bottom up, in the staging directory's blobs."""
        cached = layer_cache.neighbors(self.layout)
        base_layers = self._base_layers(cached)
        finished = self._layers_of_same_packages(cached)
        entries = {} if finished else self._package_entries()
        keys = {}
        for group in list(
            entries.keys() - {CODE_GROUP}
        ):  # that of the code changes with each commit
            keys[group] = key = self.recipe.layer_key(entries[group])
            same = [layer for layer in cached if layer.key == key]
            digest = layer_cache.link_first(same, self.new)
            if digest is not None:
                self._record({digest: key})
                finished[group] = self._layer(group, digest)
                del entries[group]
        entries[PROVISION_GROUP] = list(self.recipe.provision_files)
        if self.recipe.code:
            code = {entry.path: entry for entry in entries.get(CODE_GROUP, ())}
            code |= {entry.path: entry for entry in self.recipe.code.entries}
            entries[CODE_GROUP] = [code[path] for path in sorted(code)]
        size = sum(layers.archive_size(of_group) for of_group in entries.values())
        require_space(self.layout.parent, size, "The image", SPACE_ADVICE)
        with self.progress.meter("writing image layers", size) as meter:
            finished |= self._write(entries, keys, meter.advance)
        in_order = [finished[group.name] for group in GROUPS if group.name in finished]
        return [*base_layers, *in_order]

    def _layers_of_same_packages(self, cached: Sequence[CachedLayer]) -> dict[str, Layer]:
        """The layers of the image that is there, if it has the same packages: they need not be
        installed. Empty if one of the layers is no longer intact."""
        present = oci_layout.read(self.layout)
        if present is None or present.annotations.get(PACKAGES) != self.recipe.packages_digest:
            return {}
        if any(package.is_editable for package in self.recipe.lock.packages):
            return {}  # their files are in the layer of the code
        reused = {}
        for layer in present.layers:
            if layer.group in (BASE_GROUP, PROVISION_GROUP, CODE_GROUP):
                continue
            same = [row for row in cached if row.digest == layer.digest]
            if layer_cache.link_first(same, self.new) is None:
                return {}
            self._record({layer.digest: same[0].key})
            reused[layer.group] = layer
        return reused

    def _package_entries(self) -> dict[str, list[LayerEntry]]:
        staging = self.new / "staging"
        self.install(staging)
        code = self.recipe.code.folder if self.recipe.code else None
        return tree_files.package_entries(staging, self.recipe.lock, self.byte_code, code)

    def _base_layers(self, cached: Sequence[CachedLayer]) -> list[Layer]:
        """The base's layers, checked before anything is built on them."""
        image = self.recipe.base
        missing = []
        for diff_id in dict.fromkeys(image.diff_ids):
            same = [layer for layer in cached if layer.digest == diff_id]
            if layer_cache.link_first(same, self.new) is None:
                missing.append(diff_id)
            else:
                self.keys[diff_id] = ""
        layer_cache.record(self.new, self.keys)
        if missing:
            require_space(self.layout.parent, image.size, "The image", SPACE_ADVICE)
            blobs = oci_layout.blobs(self.new)
            with self.progress.meter("reading the base", image.size) as meter:
                layers.write_base(image.archive(), missing, blobs, meter.advance)
            self._record(dict.fromkeys(missing, ""))
        paths = [oci_layout.blob(self.new, diff_id) for diff_id in image.diff_ids]
        base.check_base(image.reference, paths, self.recipe.glibc)
        return [self._layer(BASE_GROUP, diff_id) for diff_id in image.diff_ids]

    def _layer(self, group: str, digest: str) -> Layer:
        """A layer whose file is there."""
        size = oci_layout.blob(self.new, digest).stat().st_size
        return Layer(group=group, digest=digest, size=size)

    def _record(self, keys: Mapping[str, str]) -> None:
        """Called after each layer, so that the next build can reuse the finished layers of a killed
        one."""
        self.keys.update(keys)
        layer_cache.record(self.new, self.keys)

    def _write(
        self,
        entries: Mapping[str, Sequence[LayerEntry]],
        keys: Mapping[str, str],
        advance: Callable[[int], None],
    ) -> dict[str, Layer]:
        """Write several layers at a time, the largest first: hashing, which takes longest, releases
        Python's lock."""
        blobs = oci_layout.blobs(self.new)
        largest_first = sorted(entries, key=lambda group: -layers.archive_size(entries[group]))
        finished = {}
        with ThreadPoolExecutor(usable_cpus()) as pool, _stoppable(advance) as count:
            futures = [
                pool.submit(
                    layers.write_layer, group, entries[group], blobs, self.recipe.epoch, count
                )
                for group in largest_first
            ]
            for future in as_completed(futures):
                layer = future.result()
                finished[layer.group] = layer
                self._record({layer.digest: keys.get(layer.group, "")})
        shutil.rmtree(self.new / "staging", ignore_errors=True)
        return finished


class _Stopped(Exception):
    """Another layer failed, or the user interrupted the build."""


@contextmanager
def _stoppable(advance: Callable[[int], None]) -> Iterator[Callable[[int], None]]:
    """A counter for several threads. Once the block has failed it raises, so that threads stop and
    nobody waits until they have written gigabytes."""
    stop, lock = threading.Event(), threading.Lock()

    def count(amount: int) -> None:
        if stop.is_set():
            raise _Stopped
        with lock:
            advance(amount)

    try:
        yield count
    except BaseException:
        stop.set()
        raise
