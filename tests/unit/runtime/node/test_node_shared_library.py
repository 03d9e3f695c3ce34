"""What is read from ELF files: small ones written here, and those of this Python."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision_runtime.node.shared_library import NotALibrary, parse, read_library
from tests.elf_files import elf

ID = "0123456789abcdef0123456789abcdef01234567"


def test_build_id_and_constants() -> None:
    library = parse(elf(b"\0NCCL version 2.20.5\0", ID))
    assert library.build == ID
    assert b"NCCL version 2.20.5" in library.constants


@pytest.mark.parametrize("content", [elf(b"\0text\0", None), elf(b"\0", ID, sections=False)])
def test_without_build_id_it_is_the_hash_of_the_file(content: bytes) -> None:
    assert parse(content).build == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("content", [b"", b"GROUP ( libm.so )", b"\x7fELF\1\1" + bytes(80)])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "libm.so"
    path.write_bytes(content)
    with pytest.raises(NotALibrary, match=r"libm\.so"):
        read_library(path)


LIBRARY = elf(b"\0text\0", ID)


@given(
    length=st.integers(min_value=0, max_value=len(LIBRARY)),
    flips=st.dictionaries(st.integers(0, len(LIBRARY) - 1), st.integers(0, 255), max_size=4),
)
def test_damaged_files_are_refused_or_read(length: int, flips: dict[int, int]) -> None:
    content = bytearray(LIBRARY)
    for position, value in flips.items():
        content[position] = value
    with contextlib.suppress(NotALibrary):
        parse(bytes(content[:length]))


@pytest.mark.needs("readelf")
def test_same_build_id_as_readelf_shows() -> None:
    executable = Path(sys.executable).resolve()
    notes = subprocess.run(["readelf", "-n", executable], capture_output=True, text=True).stdout
    build = read_library(executable).build
    assert f"Build ID: {build}" in notes or "Build ID" not in notes
