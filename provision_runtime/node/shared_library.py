"""What a shared library says about itself, read from its file without loading it.

Owns the ELF format, as far as it is needed: the build id and the constant texts. Loading a library
would run its constructors, and on a login node it may not even find what it depends on.
Source of the layout: elf(5) and the System V gABI, chapters 4 and 5.
"""

from __future__ import annotations

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
LOADED_SEGMENT, NOTE_SEGMENT = 1, 4
EXECUTABLE, WRITABLE = 1, 2
GNU_BUILD_ID = 3
# Constants of libraries that we read are below 1 MiB; those of torch's own are not worth reading.
CONSTANTS_LIMIT = 64 << 20


class NotALibrary(ValueError):
    """The file is not a 64-bit ELF file, or is cut off."""


@dataclass(frozen=True)
class SharedLibrary:
    """build_id: None if the linker was told to leave it out. constants: the bytes of its constant
    data, where its texts are."""

    build_id: str | None
    constants: bytes


@dataclass(frozen=True)
class _Header:
    order: str
    segments: tuple[int, int, int]  # offset, size of an entry, number of entries
    sections: tuple[int, int, int]
    section_names: int  # the index of the section that holds the sections' names


def read_library(path: Path) -> SharedLibrary:
    """Raises NotALibrary, and OSError if the file cannot be read."""
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # an empty file
            raise NotALibrary(f"{path}: the file is empty") from error
        with data:
            try:
                return parse(data)
            except NotALibrary as error:
                raise NotALibrary(f"{path}: {error}") from error


def parse(data: FileBytes) -> SharedLibrary:
    """The library whose file has these bytes. Raises NotALibrary."""
    try:
        header = _header(data)
        return SharedLibrary(build_id=_build_id(data, header), constants=_constants(data, header))
    except (struct.error, OverflowError) as error:
        raise NotALibrary(f"the file is cut off or damaged ({error})") from error


def _header(data: FileBytes) -> _Header:
    if data[:4] != MAGIC:
        raise NotALibrary("this is not an ELF file")
    file_class, order_number = struct.unpack_from("BB", data, 4)
    if file_class != CLASS_64 or order_number not in BYTE_ORDERS:
        raise NotALibrary("this is not a 64-bit ELF file")
    order = BYTE_ORDERS[order_number]
    fields = struct.unpack_from(order + "HHIQQQIHHHHHH", data, 16)
    _, _, _, _, segment_offset, section_offset = fields[:6]
    _, _, segment_size, segment_count, section_size, section_count, section_names = fields[6:]
    return _Header(
        order=order,
        segments=(segment_offset, segment_size, segment_count),
        sections=(section_offset, section_size, section_count),
        section_names=section_names,
    )


def _segments(data: FileBytes, header: _Header) -> Iterator[tuple[int, int, int, int]]:
    """Type, flags, offset and size of each segment."""
    offset, entry_size, count = header.segments
    for index in range(count):
        fields = struct.unpack_from(header.order + "IIQQQQ", data, offset + index * entry_size)
        kind, flags, start, _, _, size = fields
        yield kind, flags, start, size


def _sections(data: FileBytes, header: _Header) -> dict[str, tuple[int, int]]:
    """Offset and size of each section by its name; empty if the section headers were stripped."""
    offset, entry_size, count = header.sections
    rows = []
    for index in range(count):
        fields = struct.unpack_from(header.order + "IIQQQQ", data, offset + index * entry_size)
        name, _, _, _, start, size = fields
        rows.append((name, start, size))
    if header.section_names >= len(rows):
        return {}
    _, names_start, names_size = rows[header.section_names]
    names = data[names_start : names_start + names_size]
    sections = {}
    for name, start, size in rows:
        text = names[name : names.find(b"\0", name)]
        sections[text.decode("ascii", errors="replace")] = (start, size)
    return sections


def _constants(data: FileBytes, header: _Header) -> bytes:
    areas = []
    for name, area in _sections(data, header).items():
        if name.startswith(".rodata"):
            areas.append(area)
    if not areas:
        for kind, flags, start, size in _segments(data, header):
            if kind == LOADED_SEGMENT and not flags & (WRITABLE | EXECUTABLE):
                areas.append((start, size))
    constants = b""
    for start, size in areas:
        end = start + min(size, CONSTANTS_LIMIT - len(constants))
        constants += data[start:end] + b"\0"
    return constants


def _build_id(data: FileBytes, header: _Header) -> str | None:
    for kind, _, start, size in _segments(data, header):
        if kind != NOTE_SEGMENT:
            continue
        position, end = start, start + size
        while position + 12 <= end:
            name_size, value_size, note = struct.unpack_from(header.order + "III", data, position)
            name_start = position + 12
            value_start = name_start + _padded(name_size)
            name = data[name_start : name_start + name_size]
            if note == GNU_BUILD_ID and name == b"GNU\0":
                return data[value_start : value_start + value_size].hex()
            position = value_start + _padded(value_size)
    return None


def _padded(size: int) -> int:
    return (size + 3) & ~3
