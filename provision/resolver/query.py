"""What may be asked of the table. Every mistake in a query is reported at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from provision import catalog
from provision.catalog import Gpu, Release
from provision.core.errors import InvalidSpec
from provision.core.types import BuildSource, Platform

NUMBERS = {
    "cuda": (r"\d+(\.\d+)?", "12.1 or 12"),
    "python": (r"3\.\d+t?", "3.11, or 3.13t for a free-threaded one"),
    "driver": (r"\d+(\.\d+){0,2}", "535 or 535.129.03"),
    "glibc": (r"\d+\.\d+", "2.28"),
    "nccl": (r"\d+(\.\d+){0,2}", "2.27 or 2.27.5"),
}


@dataclass(frozen=True, kw_only=True)
class Query:
    """Parts that are None or empty ask for nothing. Of sources and platforms one is enough; a build must run on every GPU."""

    releases: tuple[Release, ...]
    cuda: str | None = None
    python: str | None = None
    driver: str | None = None
    glibc: str | None = None
    nccl: str | None = None
    gpus: tuple[Gpu, ...] = ()
    platforms: tuple[Platform, ...] = ()
    sources: tuple[BuildSource, ...] = ()
    unknown: bool = False  # also show what might fit


def parse_query(options: Mapping[str, Any]) -> Query:
    """A query from what was asked for in words. Raises InvalidSpec, NoSuchBuild for a torch that the table does not have."""
    mistakes = list(_number_mistakes(options))
    gpus = []
    for name in options.get("gpu", ()):
        try:
            gpus.append(catalog.find_gpu(name))
        except InvalidSpec as error:
            mistakes.append(str(error))
    if mistakes:
        raise InvalidSpec(" ".join(mistakes))
    asked = options.get("torch")
    return Query(
        releases=catalog.matching_releases(asked)
        if asked is not None
        else tuple(catalog.releases().values()),
        gpus=tuple(gpus),
        platforms=tuple(options.get("platform", ())),
        sources=tuple(options.get("source", ())),
        unknown=bool(options.get("unknown")),
        **{name: options.get(name) for name in NUMBERS},
    )


def _number_mistakes(options: Mapping[str, Any]) -> Iterator[str]:
    for name, (pattern, example) in NUMBERS.items():
        value = options.get(name)
        if value is not None and not re.fullmatch(pattern, value):
            yield f"--{name} is a version such as {example}, not {value!r}."
