"""Small shared libraries, written byte by byte: a build id and constants, and nothing that runs."""

from __future__ import annotations

import struct
from pathlib import Path

HEADER_SIZE, SECTION_SIZE = 64, 64
NAMES = b"\0.rodata\0.note.gnu.build-id\0.shstrtab\0"


def elf(constants: bytes, build_id: str | None = "c0ffee" * 6, *, sections: bool = True) -> bytes:
    """A 64-bit little-endian library. sections: whether it still has its section headers."""
    contents = {".rodata": constants, ".shstrtab": NAMES}
    if build_id is not None:
        value = bytes.fromhex(build_id)
        note = struct.pack("<III", 4, len(value), 3) + b"GNU\0" + value
        contents[".note.gnu.build-id"] = note
    data, table = b"", bytes(SECTION_SIZE)
    for name, content in contents.items():
        start = HEADER_SIZE + len(data)
        table += _section(NAMES.index(name.encode()), start, len(content))
        data += content
    count = len(contents) + 1 if sections else 0
    names_index = 2 if sections else 0
    header = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header += struct.pack(
        "<HHIQQQIHHHHHH",
        *(3, 62, 1, 0, 0, HEADER_SIZE + len(data) if sections else 0, 0),
        *(HEADER_SIZE, 0, 0, SECTION_SIZE, count, names_index),
    )
    return header + data + (table if sections else b"")


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
