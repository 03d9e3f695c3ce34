"""The layers of an image: those that some layout has already, made of the same packages, and the others made from their files."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from provision.core.errors import NoSpace
from provision.core.types import Layer, LockedPackage, Prefix, Progress
from provision.image import (
    base_inspection,
    conda_files,
    layer_cache,
    layer_groups,
    layers,
    oci_layout,
    wheel_files,
)
from provision.image.cache_key import Recipe
from provision.image.compression import cores
from provision.image.conda_files import Entry
from provision.image.layer_cache import Kept
from provision_runtime.report.text import format_bytes

OWN = "provision"
SPACE_ADVICE = "Free space there and run the same command again, or build without --image."


@dataclass(frozen=True, kw_only=True)
class Making:
    """One build. new: the folder that it fills; link: fills another with the conda part of the lock."""

    recipe: Recipe
    prefix: Prefix
    layout: Path
    new: Path
    link: Callable[[Path], None]
    progress: Progress
    made_of: dict[str, str] = field(default_factory=dict)  # by digest, of the layers that are done

    def layers(self) -> list[Layer]:
        """All layers, from the bottom up, in the new layout's blobs."""
        there = layer_cache.around(self.layout)
        base = self._base(there)
        lost = conda_files.clobbered(self.prefix.path)
        wanted = {
            name: self.recipe.made_of(name, packages, self._sharers(name), lost)
            for name, packages in self._packages.items()
        }
        found = {
            name: layer for name, key in wanted.items() if (layer := self._take(name, key, there))
        }
        entries = self._entries([name for name in wanted if name not in found])
        size = sum(map(layers.size_of, entries.values()))
        self._check_space(size)
        with self.progress.meter("writing image layers", size) as meter:
            made = self._write(entries, wanted, meter.advance)
        done = found | made
        return [*base, *(done[group.name] for group in layer_groups.GROUPS if group.name in done)]

    @cached_property
    def _wheels(self) -> list[wheel_files.Wheel]:
        return wheel_files.installed(
            self.prefix, self.recipe.lock.by("pip"), self.recipe.resolution.python
        )

    @cached_property
    def _packages(self) -> Mapping[str, Sequence[LockedPackage]]:
        return layer_groups.sort(
            self.recipe.lock.packages, {wheel.package.name: wheel.size for wheel in self._wheels}
        )

    @cached_property
    def _clashes(self) -> Mapping[str, Sequence[wheel_files.Claim]]:
        return wheel_files.clashes(self._wheels)

    def _wheels_of(self, group: str) -> list[wheel_files.Wheel]:
        return [wheel for wheel in self._wheels if wheel.package in self._packages[group]]

    def _sharers(self, group: str) -> list[LockedPackage]:
        return wheel_files.sharers(self._wheels_of(group), self._clashes)

    def _take_base(self, there: Sequence[Kept]) -> list[str]:
        """The base's layers that some layout has, by their digests; those that none has."""
        wanted = dict.fromkeys(self.recipe.base.diff_ids)
        taken = [
            layer_cache.take([row for row in there if row.digest == digest], self.new)
            for digest in wanted
        ]
        self._note({digest: "" for digest in taken if digest})
        return [digest for digest in wanted if digest not in taken]

    def _base(self, there: Sequence[Kept]) -> list[Layer]:
        """The base's layers, looked through before anything is built on them."""
        base = self.recipe.base
        absent = self._take_base(there)
        if absent:
            self._check_space(base.size)
            with self.progress.meter("reading the base", base.size) as meter:
                layers.write_base(base.archive(), absent, oci_layout.blobs(self.new), meter.advance)
            self._note(dict.fromkeys(absent, ""))
        found = [
            Layer(
                group="base", digest=digest, size=oci_layout.blob(self.new, digest).stat().st_size
            )
            for digest in base.diff_ids
        ]
        base_inspection.check(
            base.reference,
            [oci_layout.blob(self.new, layer.digest) for layer in found],
            self.recipe.glibc,
        )
        return found

    def _take(self, group: str, key: str, there: Sequence[Kept]) -> Layer | None:
        digest = layer_cache.take([row for row in there if row.made_of == key], self.new)
        if digest is None:
            return None
        self._note({digest: key})
        return Layer(
            group=group, digest=digest, size=oci_layout.blob(self.new, digest).stat().st_size
        )

    def _note(self, more: Mapping[str, str]) -> None:
        """After each layer, so that what a killed build had made is not lost."""
        self.made_of.update(more)
        layer_cache.note(self.new, self.made_of)

    def _entries(self, names: Sequence[str]) -> dict[str, list[Entry]]:
        """What the layers that must be made are made from, and our own, which always is."""
        found: dict[str, dict[str, Entry]] = {name: {} for name in names}
        if any(package.manager == "conda" for name in names for package in self._packages[name]):
            self._add_conda(found)
        for name in names:
            found[name].update(
                wheel_files.entries(self._wheels_of(name), self._clashes, self.prefix)
            )
        found[OWN] = {entry.path: entry for entry in self.recipe.own}
        return {
            name: [entries[path] for path in sorted(entries)] for name, entries in found.items()
        }

    def _add_conda(self, found: Mapping[str, dict[str, Entry]]) -> None:
        staging = self.new / "staging"
        staging.mkdir()
        self.link(staging)
        group_of = {
            package.name: name
            for name, packages in self._packages.items()
            for package in packages
            if package.manager == "conda"
        }
        for entry in conda_files.conda_entries(staging):
            name = group_of.get(entry.conda, "python")
            if name in found:
                found[name][entry.path] = entry

    def _write(
        self,
        entries: Mapping[str, Sequence[Entry]],
        made_of: Mapping[str, str],
        advance: Callable[[int], None],
    ) -> dict[str, Layer]:
        """Several layers at a time: hashing, which takes longest, leaves Python's lock alone."""
        blobs, epoch = oci_layout.blobs(self.new), self.recipe.epoch
        done = {}
        with ThreadPoolExecutor(cores()) as pool, _stoppable(advance) as counted:
            largest_first = sorted(entries, key=lambda name: -layers.size_of(entries[name]))
            futures: list[Future[Layer]] = [
                pool.submit(layers.write, name, entries[name], blobs, epoch, counted)
                for name in largest_first
            ]
            for future in as_completed(futures):
                layer = future.result()
                done[layer.group] = layer
                self._note({layer.digest: made_of.get(layer.group, "")})
        shutil.rmtree(self.new / "staging", ignore_errors=True)
        return done

    def _check_space(self, size: int) -> None:
        free = shutil.disk_usage(self.new).free
        if free < size:
            raise NoSpace(
                f"The image needs {format_bytes(size)} in {self.layout.parent}, where {format_bytes(free)} are free.",
                advice=SPACE_ADVICE,
            )


class _Stopped(Exception):
    """Another layer failed, or the user wants no more."""


@contextmanager
def _stoppable(advance: Callable[[int], None]) -> Iterator[Callable[[int], None]]:
    """For several threads; what calls it ends once the block was left in haste, so that nobody waits for gigabytes to be written."""
    stop, alone = threading.Event(), threading.Lock()

    def counted(amount: int) -> None:
        if stop.is_set():
            raise _Stopped
        with alone:
            advance(amount)

    try:
        yield counted
    except BaseException:
        stop.set()
        raise
