"""Small shared libraries, written byte by byte: a build id and constants, and nothing that runs."""

from __future__ import annotations

import struct
from pathlib import Path

HEADER_SIZE, SEGMENT_SIZE, SECTION_SIZE = 64, 56, 64
NOTE, LOAD, READABLE = 4, 1, 4


def elf(constants: bytes, build_id: str | None = "c0ffee" * 6, *, sections: bool = True) -> bytes:
    """A 64-bit little-endian library. sections: whether it still has its section headers."""
    note = b""
    if build_id is not None:
        value = bytes.fromhex(build_id)
        note = struct.pack("<III", 4, len(value), 3) + b"GNU\0" + value + b"\0" * (-len(value) % 4)
    # Another note precedes it, as .note.gnu.property does.
    note = struct.pack("<III", 4, 4, 5) + b"GNU\0" + b"\1\0\0\0" + note
    names = b"\0.rodata\0.shstrtab\0"
    note_start = HEADER_SIZE + 2 * SEGMENT_SIZE
    constants_start = note_start + len(note)
    names_start = constants_start + len(constants)
    sections_start = names_start + len(names)
    segments = _segment(NOTE, note_start, len(note)) + _segment(
        LOAD, constants_start, len(constants)
    )
    tables = b""
    if sections:
        tables = (
            bytes(SECTION_SIZE)
            + _section(1, constants_start, len(constants))
            + _section(9, names_start, len(names))
        )
    count = 3 if sections else 0
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = identity + struct.pack(
        "<HHIQQQIHHHHHH",
        *(3, 62, 1, 0, HEADER_SIZE, sections_start if sections else 0, 0),
        *(HEADER_SIZE, SEGMENT_SIZE, 2, SECTION_SIZE, count, 2 if sections else 0),
    )
    return header + segments + note + constants + names + tables


def _segment(kind: int, start: int, size: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, READABLE, start, start, start, size, size, 4)


def _section(name: int, start: int, size: int) -> bytes:
    return struct.pack("<IIQQQQIIQQ", name, 1, 2, start, start, size, 0, 0, 1, 0)


def write_library(
    path: Path, constants: bytes, build_id: str | None = "c0ffee" * 6, *links: str
) -> Path:
    """A library at `path`, and links to it of these names in its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(elf(constants, build_id))
    for link in links:
        (path.parent / link).symlink_to(path.name)
    return path
