"""Base images: our defaults, pinned by digest; references to bases; what a build needs to know
about a base, and what a base must contain."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from provision.catalog import version_key
from provision.catalog.data_files import load
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec

Use = Literal["base", "builder", "frontend"]

# host[:port]/path:tag@digest as the distribution specification has it; or an image id alone.
_REFERENCE = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/)?[a-z0-9]+(?:(?:\.|_|__|-+|/)[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?|sha256:[0-9a-f]{64}"
)
# An image layout on disk, as containers-transports(5) names it; disk_base.py reads it.
ON_DISK = "oci:"

SHELLS = re.compile("(?:usr/)?bin/sh")
LIBC = re.compile(r"(?:usr/)?lib(?:64)?(?:/[^/]+-linux-gnu)?/libc(?:\.so\.6|-2\.\d+\.so)")
# glibc's banner, which `libc.so.6` prints when it is run.
BANNER = re.compile(rb"GNU C Library [^\n]*version (\d+\.\d+)")


@frozen
class BaseImage:
    """An image to build on. archive: its layers as a docker or OCI archive, streamed; called only
    if they are needed."""

    reference: str
    digest: str  # of its config: what the engine calls the image id
    size: int
    diff_ids: tuple[str, ...]
    environment: tuple[str, ...]
    archive: Callable[[], Iterable[bytes]]


# References


@cache
def pinned(use: Use) -> str:
    """Our default image for a use, by its digest."""
    row = {row["use"]: row for row in load("base_images.json")["images"]}[use]
    return f"{row['reference']}@{row['digest']}"


def chosen_base(reference: str | None) -> str:
    """The base that the user chose, or our default."""
    if reference is None:
        return pinned("base")
    if is_on_disk(reference):
        return reference
    if reference.startswith(("oci-archive:", "docker-archive:")):
        raise InvalidSpec(
            f"The base {reference} is an archive; provision reads image layouts in folders.",
            advice=f"`skopeo copy {shlex.quote(reference)} oci:DIR` makes one.",
        )
    return parse_engine_reference(reference, alternatives=", or oci:DIR")


def parse_engine_reference(text: str, alternatives: str = "") -> str:
    """The name or id of an image in an engine, or InvalidSpec. alternatives: other valid
    forms, for the error."""
    if _REFERENCE.fullmatch(text):
        return text
    advice = f"Write name:tag or name@sha256:..., as `docker images` shows it{alternatives}."
    for transport in ("docker://", "docker-daemon:"):  # skopeo's
        plain = text.removeprefix(transport)
        if plain != text and _REFERENCE.fullmatch(plain):
            advice = f"Write {plain}, without {transport}"
    raise InvalidSpec(f"{text!r} is not an image reference.", advice=advice)


def is_on_disk(reference: str | None) -> bool:
    """Whether a reference names an image on disk, which can be read without an engine."""
    return reference is not None and reference.startswith(ON_DISK)


# What a base must contain


def check_base(reference: str, layers: Sequence[Path], glibc: str) -> None:
    """Check that environments work on a base: it has a shell, and its glibc is not older than the
    lock needs. Nothing is unpacked or run.

    layers: uncompressed archives from the bottom up. glibc: the oldest that works, for example
    2.28. Raises InvalidSpec if the base is unsuitable, IntegrityError if a layer is not an archive.
    """
    from provision.image.contents import read_files

    contents = read_files(layers, LIBC, noticed=SHELLS)
    banners = filter(None, map(BANNER.search, contents.files.values()))
    version = max((banner[1].decode() for banner in banners), key=version_key, default=None)
    if version is None:
        problem = "no glibc, which every build of PyTorch needs (Alpine has musl)"
    elif version_key(version) < version_key(glibc):
        problem = f"glibc {version}, but the environment was locked for {glibc} or newer"
    elif not contents.noticed:
        problem = "no /bin/sh, with which commands of packages start"
    else:
        return
    raise InvalidSpec(
        f"The base {reference} has {problem}.",
        advice="Choose another base with --base: Debian, Ubuntu or a similar distribution that is not "
        "older than this.",
    )
