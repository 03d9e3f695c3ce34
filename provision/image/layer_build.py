"""The layers of an image: reused from a layout that has them, or built from their packages'
files."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path

from provision.adapters.installed_files import byte_code_source, recorded_byte_code
from provision.core.container import PREFIX
from provision.core.dataclass import dataclass
from provision.core.errors import NoSpace
from provision.core.host import usable_cpus
from provision.core.types import Layer, LockedPackage, Prefix, Progress
from provision.image import base, conda_files, layer_cache, layers, oci_layout, wheel_files
from provision.image.cache_key import Recipe
from provision.image.layer_cache import CachedLayer
from provision.image.layers import CODE_GROUP, PROVISION_GROUP, PYTHON_GROUP, LayerEntry
from provision.image.wheel_files import InstalledWheel, SharedFiles
from provision_runtime.report.text import format_bytes

SPACE_ADVICE = "Free space there and run the same command again, or build without --image."


@dataclass(frozen=True, kw_only=True)
class LayerBuild:
    """One build. layout: what it will replace. new: the staging directory that it fills. link:
    fills another directory with the conda packages of the lock. keys: cache keys of the finished
    layers by their digests."""

    recipe: Recipe
    prefix: Prefix
    layout: Path
    new: Path
    link: Callable[[Path], None]
    progress: Progress
    keys: dict[str, str] = field(default_factory=dict)

    def layers(self) -> list[Layer]:
        """All layers, from the bottom up, in the staging directory's blobs."""
        cached = layer_cache.neighbors(self.layout)
        base_layers = self._base_layers(cached)
        clobbered = conda_files.clobbered_files(self.prefix.path)
        keys = {}
        finished: dict[str, Layer] = {}
        for group, packages in self._packages.items():
            if group == CODE_GROUP:  # never reused: it changes with each commit
                continue
            co_owners = wheel_files.co_owners(self._wheels_of(group), self._shared_files)
            key = self.recipe.layer_key(group, packages, co_owners, clobbered)
            keys[group] = key
            same = [layer for layer in cached if layer.key == key]
            digest = layer_cache.link_first(same, self.new)
            if digest is not None:
                self._record({digest: key})
                size = oci_layout.blob(self.new, digest).stat().st_size
                finished[group] = Layer(group=group, digest=digest, size=size)
        entries = self._entries([group for group in keys if group not in finished])
        size = sum(layers.archive_size(of_group) for of_group in entries.values())
        self._check_space(size)
        with self.progress.meter("writing image layers", size) as meter:
            finished |= self._write(entries, keys, meter.advance)
        in_order = [finished[group.name] for group in layers.GROUPS if group.name in finished]
        return [*base_layers, *in_order]

    @cached_property
    def _wheels(self) -> list[InstalledWheel]:
        return wheel_files.installed_wheels(
            self.prefix, self.recipe.lock.by("pip"), self.recipe.resolution.python
        )

    @cached_property
    def _packages(self) -> Mapping[str, Sequence[LockedPackage]]:
        wheel_sizes = {wheel.package.name: wheel.size for wheel in self._wheels}
        return layers.group_packages(self.recipe.lock.packages, wheel_sizes)

    @cached_property
    def _shared_files(self) -> SharedFiles:
        return wheel_files.shared_files(self._wheels)

    def _wheels_of(self, group: str) -> list[InstalledWheel]:
        packages = self._packages.get(group, ())
        return [wheel for wheel in self._wheels if wheel.package in packages]

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
            self._check_space(image.size)
            blobs = oci_layout.blobs(self.new)
            with self.progress.meter("reading the base", image.size) as meter:
                layers.write_base(image.archive(), missing, blobs, meter.advance)
            self._record(dict.fromkeys(missing, ""))
        paths = [oci_layout.blob(self.new, diff_id) for diff_id in image.diff_ids]
        base.check_base(image.reference, paths, self.recipe.glibc)
        return [
            Layer(group="base", digest=diff_id, size=path.stat().st_size)
            for diff_id, path in zip(image.diff_ids, paths, strict=True)
        ]

    def _record(self, keys: Mapping[str, str]) -> None:
        """Called after each layer, so that the next build can reuse the finished layers of a killed
        one."""
        self.keys.update(keys)
        layer_cache.record(self.new, self.keys)

    def _entries(self, groups: Sequence[str]) -> dict[str, list[LayerEntry]]:
        """The entries of the layers that must be built, and of our own layer and that of the
        code, which are always built."""
        if self.recipe.code:
            groups = [*groups, CODE_GROUP]
        by_path: dict[str, dict[str, LayerEntry]] = {group: {} for group in groups}
        packages = [package for group in groups for package in self._packages.get(group, ())]
        if any(package.manager == "conda" for package in packages):
            self._add_conda_entries(by_path)
        for group in groups:
            by_path[group].update(
                wheel_files.wheels_entries(
                    self._wheels_of(group),
                    self._shared_files,
                    self.prefix,
                    self.recipe.code.folder if self.recipe.code else None,
                )
            )
        for entries in by_path.values():
            # Add the byte code of a layer's sources: the prefix's, whose bytes depend on a
            # source and its package alone. A source without a hash may differ from the
            # prefix's, because its text names the path of the prefix. It gets no byte code.
            root = f"{PREFIX.lstrip('/')}/"
            for entry in list(entries.values()):
                if not entry.hashes:
                    continue
                for file in self._byte_code.get(entry.path.removeprefix(root), ()):
                    compiled = wheel_files.prefix_file(
                        root + file, self.prefix.path / file, self.prefix
                    )
                    hashes = frozenset({self._recorded_byte_code[file]})
                    entries[compiled.path] = replace(compiled, hashes=hashes, mode=0o644)
        by_path[PROVISION_GROUP] = {entry.path: entry for entry in self.recipe.provision_files}
        if self.recipe.code:
            by_path[CODE_GROUP] |= {entry.path: entry for entry in self.recipe.code.entries}
        return {
            group: [entries[path] for path in sorted(entries)] for group, entries in by_path.items()
        }

    def _add_conda_entries(self, by_path: Mapping[str, dict[str, LayerEntry]]) -> None:
        staging = self.new / "staging"
        staging.mkdir()
        self.link(staging)
        group_of = {}
        for group, packages in self._packages.items():
            for package in packages:
                if package.manager == "conda":
                    group_of[package.name] = group
        for entry in conda_files.conda_entries(staging, self._byte_code):
            group = group_of.get(entry.conda, PYTHON_GROUP)
            if group in by_path:
                by_path[group][entry.path] = entry

    @cached_property
    def _recorded_byte_code(self) -> Mapping[str, str]:
        return recorded_byte_code(self.prefix.path)

    @cached_property
    def _byte_code(self) -> Mapping[str, Sequence[str]]:
        """The prefix's files of byte code by their source."""
        files: dict[str, list[str]] = {}
        for file in sorted(self._recorded_byte_code):
            files.setdefault(byte_code_source(file), []).append(file)
        return files

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

    def _check_space(self, size: int) -> None:
        free = shutil.disk_usage(self.new).free
        if free < size:
            raise NoSpace(
                f"The image needs {format_bytes(size)} in {self.layout.parent}, where "
                f"{format_bytes(free)} are free.",
                advice=SPACE_ADVICE,
            )


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
