"""Byte code of prefixes: whose bytes depend on what, and who knows of the files."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from rattler import PrefixRecord

from provision.core.errors import ToolMissing
from provision.environment import bytecode, bytecode_cache, install_record, runtime_package
from provision_runtime.facts import digests
from tests.progress import Recorder
from tests.unit.environment.test_prefix import kinds_and_names, lock, make

VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
SITE = f"lib/{VERSION}/site-packages"
TAG = sys.implementation.cache_tag
CONDA_FIELDS = {
    "name": "cpkg",
    "version": "1",
    "build": "0",
    "build_number": 0,
    "depends": [],
    "subdir": "noarch",
    "fn": "cpkg-1-0.conda",
    "url": "https://conda.invalid/noarch/cpkg-1-0.conda",
    "channel": "https://conda.invalid",
}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def module(number: int) -> str:
    return f"def f{number}(self, name='x'):\n    return name in {{'a', 'bb'}}, self.value\n"


def add_wheel(tree: Path, name: str, files: dict[str, str]) -> None:
    for path, text in files.items():
        write(tree / SITE / path, text)
    rows = "".join(f"{path},,\n" for path in files)
    write(tree / SITE / f"{name}-1.dist-info" / "RECORD", rows)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A conda package and a wheel, with byte code that the package brought."""
    tree = tmp_path / "lab"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin" / "python").symlink_to(sys.executable)
    add_wheel(tree, "alpha", {f"alpha/m{number}.py": module(number) for number in range(5)})
    source, stale = f"lib/{VERSION}/cpkg.py", f"lib/{VERSION}/__pycache__/cpkg.{TAG}.pyc"
    write(tree / source, module(0))
    write(tree / stale, "compared with the time of its source")
    rows = [{"_path": path, "path_type": "hardlink"} for path in (source, stale)]
    record = {
        **CONDA_FIELDS,
        "files": [source, stale],
        "paths_data": {"paths_version": 1, "paths": rows},
    }
    write(tree / "conda-meta" / "cpkg-1-0.json", json.dumps(record))
    return tree


def test_a_package_has_the_same_byte_code_next_to_others(tree: Path, tmp_path: Path) -> None:
    bytecode.compile_all(tree, "checked-hash")
    alone = bytecode.compiled_files(tree)
    files = {f"aaa/m{number}.py": module(number) for number in range(5)}
    add_wheel(tree, "aaa", {**files, "single.py": module(1)})
    moved = tree.rename(tmp_path / "at another place")
    bytecode.compile_all(moved, "checked-hash")
    together = bytecode.compiled_files(moved)
    assert len(alone) == 6 and len(together) == 12
    assert {path: together[path] for path in alone} == alone


def test_a_file_of_two_packages_is_compiled_alone(tree: Path) -> None:
    add_wheel(tree, "beta", {"alpha/m0.py": module(0), "beta.py": module(1)})
    batches = bytecode._batches(tree)
    assert [f"{SITE}/alpha/m0.py"] in batches
    assert [f"{SITE}/beta.py"] in batches
    assert [f"{SITE}/alpha/m{number}.py" for number in range(1, 5)] in batches


def test_a_file_whose_text_names_the_place_is_compiled_alone(tree: Path) -> None:
    write(tree / f"lib/{VERSION}/plain.py", module(2))
    path = tree / "conda-meta" / "cpkg-1-0.json"
    record = json.loads(path.read_text())
    source, plain = f"lib/{VERSION}/cpkg.py", f"lib/{VERSION}/plain.py"
    record["paths_data"]["paths"] = [
        {"_path": source, "path_type": "hardlink", "prefix_placeholder": "/placeholder"},
        {"_path": plain, "path_type": "hardlink"},
    ]
    path.write_text(json.dumps(record))
    batches = bytecode._batches(tree)
    assert [source] in batches and [plain] in batches


def test_condas_record_lists_the_new_byte_code(tree: Path) -> None:
    bytecode.compile_all(tree, "checked-hash")
    file = f"lib/{VERSION}/__pycache__/cpkg.{TAG}.pyc"
    assert b"compared with the time" not in (tree / file).read_bytes()
    record = PrefixRecord.from_path(tree / "conda-meta" / "cpkg-1-0.json")
    assert [str(path) for path in record.files].count(file) == 1
    types = {str(row.relative_path): row.path_type for row in record.paths_data.paths}
    assert types[file].pyc_file and types[f"lib/{VERSION}/cpkg.py"].hardlink


def test_an_edited_source_counts(tree: Path) -> None:
    """With unchecked hashes the old code would run, without a word."""
    source = tree / SITE / "alpha" / "m0.py"
    bytecode.compile_all(tree, "checked-hash")
    source.write_text("answer = 42\n")
    command = [sys.executable, "-c", "from alpha.m0 import answer; print(answer)"]
    variables = {**os.environ, "PYTHONPATH": str(tree / SITE), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert result.stdout == "42\n"


def test_tracebacks_name_the_file(tree: Path) -> None:
    write(tree / SITE / "alpha" / "m0.py", "def fail():\n    raise ValueError\n")
    bytecode.compile_all(tree, "checked-hash")
    command = [sys.executable, "-c", "import alpha.m0; alpha.m0.fail()"]
    variables = {**os.environ, "PYTHONPATH": str(tree / SITE)}
    result = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert f'File "{tree}/{SITE}/alpha/m0.py", line 2' in result.stderr


def test_record_tells_what_changed(tmp_path: Path) -> None:
    environment, same = make(tmp_path / "lab"), lock(("six", "1.17.0"))
    python = environment.path / "bin" / "python"
    python.unlink()
    python.symlink_to(sys.executable)
    record = environment.path / "conda-meta" / "python-3.11.7-host_0.json"
    record.write_text(json.dumps({"name": "python", "version": "3.11.7", "build": "host_0"}))
    bytecode.compile_all(environment.path, "checked-hash")
    install_record.write(environment.path)
    assert kinds_and_names(environment, same) == set()
    assert kinds_and_names(environment, same, files=True) == set()

    site = environment.path / "lib" / "python3.11" / "site-packages"
    (site / "six.py").write_text("x = 1\ny = 2\n")
    assert kinds_and_names(environment, same) == {("changed", "six")}
    assert ("changed", "six") in kinds_and_names(environment, same, files=True)
    (site / "six.py").write_text("x = 1\n")
    (site / "mine.py").write_text("")
    assert kinds_and_names(environment, same) == {("changed", "(other files)")}
    (site / "mine.py").unlink()
    next(site.glob("__pycache__/six.*.pyc")).write_bytes(b"damaged")
    assert kinds_and_names(environment, same) == set()
    assert kinds_and_names(environment, same, files=True) == {("changed", "(byte code)")}


def test_a_new_runtime_package_is_no_difference(tmp_path: Path) -> None:
    environment, same = make(tmp_path / "lab"), lock(("six", "1.17.0"))
    python = environment.path / "bin" / "python"
    python.unlink()
    python.symlink_to(sys.executable)
    runtime_package.install(environment.path, runtime_package.load(version="0.0.1"))
    bytecode.compile_all(environment.path, "checked-hash")
    install_record.write(environment.path)
    runtime_package.install(environment.path, runtime_package.load())
    install_record.compile_runtime(environment.path)
    folder = runtime_package.site_packages(environment.path) / "provision_runtime"
    assert len(list(folder.rglob("*.pyc"))) == len(list(folder.rglob("*.py")))
    assert kinds_and_names(environment, same) == set()


@pytest.fixture
def cached_tree(tree: Path, tmp_path: Path) -> Path:
    """The tree with a Python that a package's hash identifies, compiled once with a cache."""
    add_python(tree, "a" * 64)
    bytecode.compile_all(tree, "checked-hash", tmp_path / "cache")
    return tree


def add_python(tree: Path, sha256: str) -> None:
    version = ".".join(map(str, sys.version_info[:3]))
    record = {"name": "python", "version": version, "sha256": sha256}
    write(tree / "conda-meta" / f"python-{version}-0.json", json.dumps(record))


def without_python(tree: Path) -> None:
    """What is compiled from here on fails."""
    (tree / "bin" / "python").unlink()


@pytest.mark.parametrize("first", get_args(bytecode.Mode))
def test_compiled_packages_come_from_the_cache(
    first: bytecode.Mode, tree: Path, tmp_path: Path
) -> None:
    """One entry serves both modes, whichever compiled it."""
    add_python(tree, "a" * 64)
    compiled = {}
    for mode in get_args(bytecode.Mode):
        bytecode.compile_all(tree, mode)
        compiled[mode] = bytecode.compiled_files(tree)
    assert len(set(map(str, compiled.values()))) == 2 and len(compiled[first]) == 6
    bytecode.compile_all(tree, first, tmp_path / "cache")
    without_python(tree)
    moved = tree.rename(tmp_path / "elsewhere")
    for mode, before in compiled.items():
        assert bytecode.compile_all(moved, mode, tmp_path / "cache") == before
        assert bytecode.compiled_files(moved) == before


def test_prefixes_share_the_files_of_the_cache(cached_tree: Path, tmp_path: Path) -> None:
    """A tree with another mode, or with other permissions, has files of its own."""
    file = cached_tree / bytecode_file("alpha", "m0")
    content, permissions = file.read_bytes(), stat.S_IMODE(file.stat().st_mode)
    for mode in get_args(bytecode.Mode):
        bytecode.compile_all(cached_tree, mode, tmp_path / "cache")
        assert file.stat().st_nlink == (2 if mode == "checked-hash" else 1)
    (cached_tree / SITE / "alpha" / "m0.py").chmod(0o600)
    bytecode.compile_all(cached_tree, "checked-hash", tmp_path / "cache")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 != permissions
    (cached_tree / SITE / "alpha" / "m0.py").chmod(permissions)
    bytecode.compile_all(cached_tree, "checked-hash", tmp_path / "cache")
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (content, permissions)


def bytecode_file(package: str, module: str) -> Path:
    return Path(SITE) / package / "__pycache__" / f"{module}.{TAG}.pyc"


def test_a_bar_moves_while_modules_are_compiled(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes do not depend on how much is compiled at a time."""
    bytecode.compile_all(tree, "checked-hash")
    before = bytecode.compiled_files(tree)
    monkeypatch.setattr(bytecode, "ROUND", 1)
    monkeypatch.setattr(bytecode, "usable_cpus", lambda: 1)
    progress = Recorder()
    add_python(tree, "a" * 64)
    for cache in (None, tmp_path / "cache", tmp_path / "cache"):
        bytecode.compile_all(tree, "checked-hash", cache, progress)
        assert bytecode.compiled_files(tree) == before
    (total,) = set(progress.totals)
    moves = progress.advances
    assert sum(moves) == 3 * total and moves.count(1) == 2 * total > 2


def test_a_hard_link_to_byte_code_is_not_written_to(tmp_path: Path) -> None:
    """As in an environment that shares the files of the one before."""
    path, other = tmp_path / "m0.pyc", tmp_path / "other.pyc"
    other.write_bytes(b"of another environment")
    os.link(other, path)
    with pytest.raises(FileExistsError):
        bytecode_cache._write_file(str(path), b"new", str(tmp_path), "")
    assert other.read_bytes() == b"of another environment"


def test_cache_is_not_used_for_other_sources_or_another_python(
    cached_tree: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    write(cached_tree / SITE / "alpha" / "m0.py", module(7))
    bytecode.compile_all(cached_tree, "checked-hash", cache)
    changed = bytecode.compiled_files(cached_tree)
    bytecode.compile_all(cached_tree, "checked-hash")
    assert bytecode.compiled_files(cached_tree) == changed
    add_python(cached_tree, "b" * 64)
    without_python(cached_tree)
    with pytest.raises(ToolMissing):
        bytecode.compile_all(cached_tree, "checked-hash", cache)


def flip_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [lambda _: b"", lambda content: content[:100], flip_bit])
def test_damaged_entry_is_compiled_anew(
    cached_tree: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    before = bytecode.compiled_files(cached_tree)
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file():
            path.write_bytes(damage(path.read_bytes()))
    bytecode.compile_all(cached_tree, "checked-hash", tmp_path / "cache")
    assert bytecode.compiled_files(cached_tree) == before
    without_python(cached_tree)
    bytecode.compile_all(cached_tree, "checked-hash", tmp_path / "cache")


def test_full_disk_of_the_cache_is_no_failure(tree: Path, tmp_path: Path) -> None:
    add_python(tree, "a" * 64)
    (tmp_path / "cache").write_text("a file, where a folder cannot be made")
    bytecode.compile_all(tree, "checked-hash", tmp_path / "cache")
    assert len(bytecode.compiled_files(tree)) == 6


def test_a_file_that_conda_and_a_wheels_record_list_is_condas(tree: Path) -> None:
    """conda packages of Python projects bring a dist-info folder."""
    files = {f"delta/m{number}.py": module(number) for number in range(3)}
    add_wheel(tree, "delta", files)
    path = tree / "conda-meta" / "cpkg-1-0.json"
    record = json.loads(path.read_text())
    for name in (*files, "delta-1.dist-info/RECORD"):
        record["paths_data"]["paths"].append({"_path": f"{SITE}/{name}", "path_type": "hardlink"})
    path.write_text(json.dumps(record))
    batches = bytecode._batches(tree)
    assert [f"lib/{VERSION}/cpkg.py", *(f"{SITE}/{name}" for name in files)] in batches


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("lib/a/__pycache__/m.cpython-311.pyc", "lib/a/m.py"),
        ("lib/a/__pycache__/m.cpython-311.opt-1.pyc", "lib/a/m.py"),
        ("lib/a/__pycache__/test_m.cpython-311-pytest-8.3.2.pyc", "lib/a/test_m.py"),
        ("lib/a/__pycache__/m.pyc", "lib/a/m.py"),
        ("lib/a/m.pyc", ""),
        ("m.py", ""),
    ],
)
def test_host_and_runtime_find_the_same_source_of_byte_code(path: str, source: str) -> None:
    """The two packages cannot import each other here."""
    assert digests.byte_code_source(path) == source
