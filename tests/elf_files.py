"""Small files that look like shared libraries, and run nothing."""

from __future__ import annotations

from pathlib import Path


def write_library(path: Path, constants: bytes, build: str = "", *links: str) -> Path:
    """A library at `path`, and links to it of these names in its folder. build: tells its file apart."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF" + constants + build.encode())
    for link in links:
        (path.parent / link).symlink_to(path.name)
    return path
