"""What the file of a shared library holds, read without loading it.

Owns the ELF format, as far as it is needed: the build id and the constant texts. Loading a library
would run its constructors, and on a login node it may not even find what it depends on.
Source of the layout: elf(5) and the System V gABI, chapters 4 and 5.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    FileBytes = bytes | mmap.mmap

MAGIC = b"\x7fELF"
CLASS_64 = 2
BYTE_ORDERS = {1: "<", 2: ">"}
# GNU's note: sizes of name and value, type, the name `GNU` with a zero byte, and the value.
BUILD_ID_SECTION = ".note.gnu.build-id"
NOTE_HEADER = 16
# Constants of libraries that we read are below 1 MiB; those of torch's own are not worth reading.
CONSTANTS_LIMIT = 64 << 20


class NotALibrary(ValueError):
    """The file is not a 64-bit ELF file, or is cut off."""


@dataclass(frozen=True)
class SharedLibrary:
    """build: the linker's build id, or the hash of a file without one. constants: the bytes of its
    constant data, where its texts are; none where the section headers were stripped."""

    build: str
    constants: bytes


def read_library(path: Path) -> SharedLibrary:
    """Raises NotALibrary, and OSError if the file cannot be read."""
    with path.open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return parse(data)
        except ValueError as error:  # NotALibrary, or an empty file
            raise NotALibrary(f"{path}: {error}") from error


def parse(data: FileBytes) -> SharedLibrary:
    """The library whose file has these bytes. Raises NotALibrary."""
    build, constants = "", b""
    try:
        for name, start, size in _sections(data):
            if name == BUILD_ID_SECTION:
                build = data[start + NOTE_HEADER : start + size].hex()
            elif name.startswith(".rodata"):
                end = start + min(size, CONSTANTS_LIMIT - len(constants))
                constants += data[start:end] + b"\0"
    except (struct.error, OverflowError) as error:
        raise NotALibrary(f"the file is cut off or damaged ({error})") from error
    build = build or hashlib.sha256(data).hexdigest()
    return SharedLibrary(build=build, constants=constants)


def _sections(data: FileBytes) -> Iterator[tuple[str, int, int]]:
    """Name, offset and size of each section."""
    if data[:4] != MAGIC:
        raise NotALibrary("this is not an ELF file")
    file_class, order_number = struct.unpack_from("BB", data, 4)
    if file_class != CLASS_64 or order_number not in BYTE_ORDERS:
        raise NotALibrary("this is not a 64-bit ELF file")
    order = BYTE_ORDERS[order_number]
    (offset,) = struct.unpack_from(order + "Q", data, 40)
    entry_size, count, names_index = struct.unpack_from(order + "HHH", data, 58)
    rows = []
    for index in range(count):
        fields = struct.unpack_from(order + "IIQQQQ", data, offset + index * entry_size)
        name, _, _, _, start, size = fields
        rows.append((name, start, size))
    if names_index >= len(rows):
        return
    _, names_start, names_size = rows[names_index]
    names = data[names_start : names_start + names_size]
    for name, start, size in rows:
        text = names[name : names.find(b"\0", name)]
        yield text.decode("ascii", errors="replace"), start, size
