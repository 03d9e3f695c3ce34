"""What the table of builds can be asked for. Every mistake in a query is reported at once."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provision import catalog
from provision.catalog import Gpu, Release
from provision.core.errors import InvalidSpec
from provision.core.spec_fields import QUERY_KEYS, Spec
from provision.core.types import BuildSource, Platform
from provision.sources.base import Axis


@dataclass(frozen=True, kw_only=True)
class Query:
    """Which builds to show. None and empty parts ask for nothing.

    A build must be from one of the sources, for one of the platforms, and run on every GPU.
    """

    releases: tuple[Release, ...]
    cuda: str | None = None
    python: str | None = None
    driver: str | None = None
    glibc: str | None = None
    nccl: str | None = None
    gpus: tuple[Gpu, ...] = ()
    platforms: tuple[Platform, ...] = ()
    sources: tuple[BuildSource, ...] = ()
    unknown: bool = False  # also show what may fit

    @property
    def axes(self) -> tuple[Axis, ...]:
        """What a build of those releases, sources and platforms is judged by."""
        requested: dict[Axis, Any] = {
            "cuda": self.cuda,
            "python": self.python,
            "nccl": self.nccl,
            "driver": self.driver,
            "gpu": self.gpus,
            "glibc": self.glibc,
        }
        return tuple(axis for axis, value in requested.items() if value)

    def spec(self, platform: Platform) -> Spec:
        """The query as a request for one platform, which the constraints understand."""
        return Spec(
            name="",
            torch="",
            cuda=self.cuda or "auto",
            python=self.python,
            nccl=self.nccl,
            gpu=tuple(gpu.name for gpu in self.gpus),
            driver=self.driver,
            glibc=self.glibc,
            platforms=(platform,),
            companions=False,
        )

    def without(self, field: str) -> Query:
        """The query with one part given up."""
        emptied: Any = () if isinstance(getattr(self, field), tuple) else None
        return dataclasses.replace(self, **{field: emptied})


def parse_query(options: Mapping[str, Any]) -> Query:
    """A query from options.

    Raises InvalidSpec, and NoSuchBuild for a torch that the table does not have.
    """
    mistakes = []
    versions = {}
    for key in QUERY_KEYS:
        value = options.get(key.name)
        if not key.pattern:
            continue
        versions[key.name] = value
        if value is not None and not re.fullmatch(key.pattern, value):
            mistakes.append(f"--{key.name} is a version such as {key.example}, not {value!r}.")
    gpus = []
    for name in options.get("gpu", ()):
        try:
            gpus.append(catalog.find_gpu(name))
        except InvalidSpec as error:
            mistakes.append(str(error))
    if mistakes:
        raise InvalidSpec(" ".join(mistakes))
    torch = options.get("torch")
    if torch is None:
        releases = tuple(catalog.releases().values())
    else:
        releases = catalog.matching_releases(torch)
    return Query(
        releases=releases,
        gpus=tuple(gpus),
        platforms=tuple(options.get("platform", ())),
        sources=tuple(options.get("source", ())),
        unknown=bool(options.get("unknown")),
        **versions,
    )
