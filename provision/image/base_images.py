"""Base images: the facts we ship, references that users give, and what a build needs to know of one."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from provision.core.errors import InvalidSpec

Use = Literal["base", "builder"]

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# host[:port]/path:tag@digest as the distribution specification has it; an image id may stand alone.
_REFERENCE = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/)?[a-z0-9]+(?:(?:\.|_|__|-+|/)[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?|sha256:[0-9a-f]{64}"
)
# Images on disk, as containers-transports(5) names them; stored.py reads them.
STORED = re.compile(r"(oci|oci-archive|docker-archive):(.+)")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of data/base_images.yml."""

    use: Use
    reference: str
    digest: str
    source: str

    @property
    def pinned(self) -> str:
        return f"{self.reference}@{self.digest}"


@dataclass(frozen=True, kw_only=True)
class BaseImage:
    """An image to build on: its identity, and a way to its layers that is taken only when they are needed."""

    reference: str
    digest: str  # of its config: what the engine calls the image id
    size: int
    diff_ids: tuple[str, ...]
    environment: tuple[str, ...]
    archive: Callable[[], Iterable[bytes]]  # a docker or OCI archive as a stream


@functools.cache
def rows() -> tuple[Row, ...]:
    """The images we ship a digest of, checked."""
    import yaml

    text = files("provision").joinpath("catalog/data/base_images.yml").read_text(encoding="utf-8")
    return tuple(_row(entry) for entry in yaml.safe_load(text)["images"])


def _row(entry: dict[str, Any]) -> Row:
    row = Row(**entry)
    pinned = DIGEST.fullmatch(row.digest) and "@" not in row.reference
    if row.use not in ("base", "builder") or not pinned or not row.source:
        raise ValueError(
            f"data/base_images.yml: {row.reference} needs a use, a name and tag, a digest and a source"
        )
    return row


def pinned(use: Use) -> str:
    """The reference that we ship for a use, with its digest."""
    return next(row.pinned for row in rows() if row.use == use)


def chosen_base(reference: str | None) -> str:
    """The base a user named, or ours."""
    if reference is None:
        return pinned("base")
    return (
        reference
        if is_stored(reference)
        else engine_reference(reference, ", or oci:DIR, oci-archive:FILE, docker-archive:FILE")
    )


def engine_reference(text: str, otherwise: str = "") -> str:
    """What an engine knows an image by, or InvalidSpec. otherwise: what else could have been given."""
    if not _REFERENCE.fullmatch(text):
        advice = f"Write name:tag or name@sha256:..., as `docker images` shows it{otherwise}."
        raise InvalidSpec(f"{text!r} is not an image reference.", advice=advice)
    return text


def name_of(text: str) -> str:
    """A name for an image as NAME:TAG, with `latest` where a user gave none; InvalidSpec for what engines would not take."""
    last = text.rpartition("/")[2]
    if not _REFERENCE.fullmatch(text) or "@" in text or text.startswith("sha256:"):
        raise InvalidSpec(
            f"{text!r} is no name for an image.",
            advice="Write name or name:tag, in lower-case letters and digits; a registry's host may stand before it.",
        )
    return text if ":" in last else f"{text}:latest"


def is_stored(reference: str | None) -> bool:
    """Whether a reference names an image on disk, for which no engine is needed."""
    return reference is not None and STORED.fullmatch(reference) is not None
