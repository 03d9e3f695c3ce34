"""The compiler that a prefix's own Python runs: the same bytes from any number of processes, whatever
the place."""

from __future__ import annotations

import marshal
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from provision_runtime.node import bytecode

FLAGS = slice(4, 8)  # of a pyc's header (PEP 552)
HASH_BASED, CHECKED = 1, 2
LIBRARY = "lib/python3.11"


def make_tree(folder: Path, count: int) -> list[list[str]]:
    """Modules that share strings, some of them in sets. Returns them in batches of 50."""
    library = folder / LIBRARY
    library.mkdir(parents=True)
    names = []
    for number in range(count):
        text = (
            f"def f{number}(self, name='x'):\n"
            f"    return name in {{'a', 'bb', 'ccc'}}, self.{'pqr'[number % 3]}\n"
        )
        (library / f"m{number}.py").write_text(text)
        names.append(f"{LIBRARY}/m{number}.py")
    return [names[start : start + 50] for start in range(0, count, 50)]


def compiled(tree: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in tree.rglob("*.pyc")}


def run(
    tree: Path, batches: list[list[str]], processes: int = 2, mode: str = "checked-hash"
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-s", "-S", "-B", "-X", "utf8", str(bytecode.__file__)]
    return subprocess.run(
        [*command, str(tree), mode, str(processes)],
        input="\n\n".join("\n".join(batch) for batch in batches),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )


def test_bytes_depend_on_the_sources_alone(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "another-place"
    assert run(one, make_tree(one, 150), 1).returncode == 0
    batches = make_tree(other, 150)
    assert run(other, batches[::-1], 3).returncode == 0
    assert len(compiled(one)) == 150
    assert compiled(one) == compiled(other)


@pytest.mark.parametrize("mode", ["checked-hash", "unchecked-hash"])
def test_code_names_the_source_from_the_prefix(tmp_path: Path, mode: str) -> None:
    assert run(tmp_path, make_tree(tmp_path, 1), mode=mode).returncode == 0
    (content,) = compiled(tmp_path).values()
    flags = int.from_bytes(content[FLAGS], "little")
    assert flags == HASH_BASED | (CHECKED if mode == "checked-hash" else 0)
    assert marshal.loads(content[16:]).co_filename == f"{LIBRARY}/m0.py"


def test_file_that_is_not_python_gets_none(tmp_path: Path) -> None:
    make_tree(tmp_path, 1)
    (tmp_path / "lib" / "template.py").write_text("{{ name }} = ?\n")
    (tmp_path / "lib" / "binary.py").write_bytes(b"\0\xff")
    batch = ["lib/template.py", "lib/binary.py", "lib/gone.py", f"{LIBRARY}/m0.py"]
    assert run(tmp_path, [batch]).returncode == 0
    assert [name.split(".")[0] for name in compiled(tmp_path)] == ["m0"]


def test_unwritable_byte_code_is_an_error(tmp_path: Path) -> None:
    batches = make_tree(tmp_path, 2)
    (tmp_path / LIBRARY / "__pycache__").write_text("a file where a folder must be")
    result = run(tmp_path, batches)
    assert result.returncode != 0
    assert "Not a directory" in result.stderr


@pytest.mark.mounts
def test_full_disk_is_an_error(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
    try:
        batches = make_tree(tmp_path / "tree", 12)
        shutil.copytree(tmp_path / "tree" / "lib", disk / "lib")
        result = run(disk, batches)
        assert result.returncode != 0
        assert "No space left on device" in result.stderr
    finally:
        subprocess.run(["umount", disk], check=True)
