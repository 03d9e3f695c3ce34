"""What lies in the layouts of this machine: layers, what each was made of, and whether they are still the bytes that were hashed.

Each layout has a document of its own for that, which is no part of the image. A layer whose file has the size, time and number that
it had when it was hashed is taken for what its name says; any other is hashed again. A layer that another layout has already, made of
the same things, gets a second name there instead of being made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.adapters.http import sha256_of
from provision.core.atomic import atomic_write
from provision.core.errors import IntegrityError
from provision.image import oci_layout
from provision.image.layers import PIECE

FILE = "layers.json"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A layer in a layout. made_of: what its maker calls what it is made of; none for layers of a base."""

    path: Path
    made_of: str
    mark: tuple[int, ...]

    @property
    def digest(self) -> str:
        return f"sha256:{self.path.name}"

    @property
    def is_as_hashed(self) -> bool:
        with contextlib.suppress(OSError):
            return _mark(self.path) == self.mark
        return False


def _mark(path: Path) -> tuple[int, ...]:
    """What changes when a file is written to or replaced, but not when it gets another name, as its ctime does."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def note(layout: Path, made_of: Mapping[str, str]) -> None:
    """Remember layers that were just hashed: made_of by digest."""
    rows = {
        digest: {"made_of": key, "mark": _mark(oci_layout.blob(layout, digest))}
        for digest, key in made_of.items()
    }
    atomic_write(layout / FILE, oci_layout.canonical(rows))


def read(layout: Path) -> list[Kept]:
    """What was noted in a layout; nothing where it cannot be read."""
    try:
        rows = json.loads((layout / FILE).read_bytes())
        return [
            Kept(
                path=oci_layout.blob(layout, digest),
                made_of=str(row["made_of"]),
                mark=tuple(map(int, row["mark"])),
            )
            for digest, row in rows.items()
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


def around(layout: Path) -> list[Kept]:
    """What was noted in a layout, in what a killed build of it left, and in those beside it."""
    others = sorted(path for path in layout.parent.iterdir() if not path.name.startswith("."))
    places = dict.fromkeys([layout, oci_layout.left(layout), *others])
    return [kept for place in places for kept in read(place)]


def take(found: Iterable[Kept], layout: Path) -> str | None:
    """Give the first of these that is as it was hashed a second name in a layout; its digest. No byte of it is read."""
    for kept in found:
        to = oci_layout.blobs(layout) / kept.path.name
        with contextlib.suppress(
            OSError
        ):  # gone meanwhile, on another disk, or a disk without second names: then it is made
            if kept.is_as_hashed:
                if not to.exists():
                    os.link(kept.path, to)
                if _mark(to) == kept.mark:
                    return kept.digest
                to.unlink()
    return None


def damaged(layout: Path, digests: Sequence[str], *, thorough: bool = False) -> list[str]:
    """Those layers of a layout that are not what their digests say; they lose their names, and the layout is whole no more.

    A layer is hashed where its file is not as it was when it was hashed last, or always.
    """
    known = {kept.digest: kept for kept in read(layout)}
    doubtful = [
        digest
        for digest in dict.fromkeys(digests)
        if thorough or digest not in known or not known[digest].is_as_hashed
    ]
    bad = [
        digest
        for digest in doubtful
        if f"sha256:{sha256_of(oci_layout.blob(layout, digest))}" != digest
    ]
    for digest in bad:
        strike(oci_layout.blob(layout, digest))
    if doubtful:
        rows = {row.digest: row.made_of for row in known.values() if row.path.exists()}
        rows |= {digest: rows.get(digest, "") for digest in digests if digest not in bad}
        with contextlib.suppress(
            OSError
        ):  # not ours to write to: then it is hashed again next time
            note(layout, rows)
    return bad


def strike(blob: Path) -> None:
    """Take a damaged layer out of its layout. Its time changes, so that other layouts that share the file look at it too."""
    with contextlib.suppress(OSError):
        os.utime(blob)
        blob.unlink()


def pieces(blob: Path) -> Iterator[bytes]:
    """The bytes of a blob. IntegrityError after the last, if they are not what its name says: whoever takes them must not keep them."""
    digest = hashlib.sha256()
    with blob.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            yield piece
    if digest.hexdigest() != blob.name:
        strike(blob)
        raise broken(blob)


def broken(blob: Path) -> IntegrityError:
    """A blob of a layout that is not what its name says."""
    return IntegrityError(
        f"{blob} was damaged on this disk: it is not what its name says.",
        advice="`provision image build` makes it again.",
    )
