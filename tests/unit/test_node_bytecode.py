"""Byte code for packs: the same bytes from any number of processes, whatever the place."""

from __future__ import annotations

import marshal
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from provision_runtime.node import bytecode

FINAL = "/opt/final"
FLAGS = slice(4, 8)  # of a pyc's header (PEP 552)
HASH_BASED, CHECKED = 1, 2


def make_tree(folder: Path, count: int = 3 * bytecode.BATCH) -> Path:
    """Modules that share strings, some of them in sets."""
    library = folder / "lib" / "python3.11"
    library.mkdir(parents=True)
    for number in range(count):
        text = f"def f{number}(self, name='x'):\n    return name in {{'a', 'bb', 'ccc'}}, self.{'pqr'[number % 3]}\n"
        (library / f"m{number}.py").write_text(text)
    return folder


def compiled(tree: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in tree.rglob("*.pyc")}


def run(tree: Path, processes: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", "-m", "provision_runtime.node.bytecode"]
    variables = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(
        [*command, str(tree), FINAL, str(processes)], capture_output=True, text=True, env=variables
    )


def test_bytes_depend_on_the_sources_alone(tmp_path: Path) -> None:
    one, other = make_tree(tmp_path / "one"), make_tree(tmp_path / "another-place")
    assert run(one, 1).returncode == 0
    assert run(other, 3).returncode == 0
    assert len(compiled(one)) == 3 * bytecode.BATCH
    assert compiled(one) == compiled(other)


def test_code_names_the_final_path_and_is_never_checked(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", 1)
    assert run(tree, 1).stdout == "1\n"
    (content,) = compiled(tree).values()
    flags = int.from_bytes(content[FLAGS], "little")
    assert flags & HASH_BASED and not flags & CHECKED
    assert marshal.loads(content[16:]).co_filename == f"{FINAL}/lib/python3.11/m0.py"


def test_byte_code_of_packages_is_replaced(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", 1)
    stale = tree / "lib" / "python3.11" / "__pycache__" / "gone.cpython-311.pyc"
    stale.parent.mkdir()
    stale.write_bytes(b"of a file that is gone")
    assert run(tree, 1).returncode == 0
    assert not stale.exists() and len(compiled(tree)) == 1


def test_file_that_is_not_python_gets_none(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", 1)
    (tree / "lib" / "template.py").write_text("{{ name }} = ?\n")
    (tree / "lib" / "binary.py").write_bytes(b"\0\xff")
    (tree / "lib" / "link.py").symlink_to("python3.11/m0.py")
    result = run(tree, 2)
    assert (result.returncode, next(iter(compiled(tree))).split(".")[0]) == (0, "m0")
    assert len(compiled(tree)) == 1


def test_unwritable_byte_code_is_an_error(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", 2)
    (tree / "lib" / "python3.11" / "__pycache__").write_text("a file where a folder must be")
    result = run(tree, 2)
    assert result.returncode != 0
    assert "Not a directory" in result.stderr


@pytest.mark.needs("mount")
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_full_disk_is_an_error(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=True)
    try:
        source = make_tree(tmp_path / "tree", 12)
        shutil.copytree(source / "lib", disk / "lib")
        result = run(disk, 2)
        assert result.returncode != 0
        assert "No space left on device" in result.stderr
    finally:
        subprocess.run(["umount", disk], check=True)
