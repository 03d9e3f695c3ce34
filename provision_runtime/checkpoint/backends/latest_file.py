"""What `latest` says, in every kind of store."""

from __future__ import annotations

from .. import layout, manifest

PROBLEM = 'it is not what a save wrote (a step can be asked for by its number, or on_damage="previous"; the next save writes it anew)'


def named_by(content: bytes, root: str) -> str:
    """Raises DamagedFile where it is not what was written."""
    folder = layout.pointed_to(content)
    if folder is None:
        raise manifest.DamagedFile(f"{root}/{layout.LATEST}", PROBLEM)
    return folder
