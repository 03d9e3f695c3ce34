"""Byte code for every source of an installed tree, compiled by the tree's own Python.

The bytes of a package's byte code depend on the package and the Python alone, not on what else is
in the tree or where it lies. So images can share layers, and ranks can compare files.
"""

from __future__ import annotations

import json
import os
import posixpath
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from provision.adapters.http import sha256_of
from provision.adapters.installed_files import (
    CondaRecord,
    conda_records,
    list_byte_code,
)
from provision.adapters.listed_files import listed_files
from provision.core.errors import ToolFailed
from provision.core.host import usable_cpus
from provision.core.process import run
from provision.core.system_errors import tool_without_space
from provision.core.types import Meter, Progress
from provision.environment import runtime_package
from provision.environment.bytecode_cache import ByteCodeCache
from provision_runtime.facts.digests import byte_code_source

# checked-hash: Python reads the source and compares its hash, so that an edited source counts.
# unchecked-hash: for what nobody can edit (PEP 552).
Mode = Literal["checked-hash", "unchecked-hash"]
FOLDER = "__pycache__"
COMPILER = runtime_package.FOLDER / "node" / "bytecode.py"
BATCH = 100  # sources; part of the bytes
ROUND = 8  # batches for each CPU


def compile_all(
    tree: Path,
    mode: Mode,
    cache: Path | None = None,
    progress: Progress | None = None,
    *,
    base: Path | None = None,
) -> dict[str, str]:
    """Compile every source below a tree's lib, instead of all byte code that packages brought or
    Python wrote. conda's records list the new files.

    cache: the folder of bytecode_cache.py. base: the tree with the Python, if this one has wheels
    alone. Returns the sha256 of each file of byte code, by its path from the tree. Raises NoSpace on
    a full disk.
    """
    _remove_byte_code(tree / "lib")
    records = conda_records(tree)
    batches = _batches(tree)
    opened = _open_cache(cache, base or tree)
    title = "compiling every module"
    if progress is None:
        restored = _compile(tree, batches, mode, opened, None, base)
    else:
        with progress.meter(title, len(batches)) as meter:
            restored = _compile(tree, batches, mode, opened, meter, base)
    hashes = {file: restored.get(file) or sha256_of(tree / file) for file in _compiled(tree)}
    _list_in_records(tree, records, hashes)
    return hashes


def compile_folder(tree: Path, folder: Path, mode: Mode, cache: Path | None = None) -> None:
    """Compile the sources of one package, which has all of this folder."""
    _remove_byte_code(folder)
    sources = _sources(tree, _relative(folder, tree))
    _compile(tree, _chunks(sources), mode, _open_cache(cache, tree))


def compiled_files(tree: Path) -> dict[str, str]:
    """The sha256 of every file of byte code below a tree's lib, by its path from the tree."""
    return {file: sha256_of(tree / file) for file in _compiled(tree)}


def _open_cache(folder: Path | None, tree: Path) -> ByteCodeCache | None:
    """None if nobody asked for one, or if no package's hash says which Python compiles."""
    for record in conda_records(tree, "python-*.json").values():
        if folder is not None and record.get("name") == "python" and record.get("sha256"):
            major, minor, *_ = record["version"].split(".")
            tag = f"cpython-{major}{minor}"
            return ByteCodeCache(folder, python=record["sha256"], tag=tag, compiler=COMPILER)
    return None


def _compile(
    tree: Path,
    batches: Sequence[Sequence[str]],
    mode: Mode,
    cache: ByteCodeCache | None = None,
    meter: Meter | None = None,
    base: Path | None = None,
) -> dict[str, str]:
    """Returns the sha256 of each file that was not compiled, but restored."""
    missing: dict[Path, Sequence[str]] = {}
    restored: dict[str, str] = {}
    if cache is not None:
        missing, restored = cache.restore(tree, batches, mode)
    pending = batches if cache is None else list(missing.values())
    if meter:
        meter.advance(len(batches) - len(pending))
    # A process for some of them at a time, so that a bar moves on.
    step = ROUND * usable_cpus()
    for start in range(0, len(pending), step):
        batch = pending[start : start + step]
        _run_compiler(tree, batch, mode, base or tree)
        if meter:
            meter.advance(len(batch))
    if cache is not None:
        cache.add(tree, missing)
    return restored


def _run_compiler(tree: Path, batches: Sequence[Sequence[str]], mode: Mode, base: Path) -> None:
    python = base / "bin" / "python"
    # -S, -s: nothing of the tree runs, whose code would decide about the bytes too.
    options = ["-s", "-S", "-B", "-X", "utf8"]
    command = [python, *options, COMPILER, tree, mode, str(usable_cpus())]
    # The hash seed decides the order of sets, and so their bytes.
    variables = {"PATH": os.defpath, "PYTHONHASHSEED": "0"}
    text = os.fsencode("\n\n".join("\n".join(batch) for batch in batches))
    try:
        run(command, env=variables, stdin=text)
    except ToolFailed as error:
        if no_space := tool_without_space(error.tail, tree.parent):
            raise no_space from error
        raise


def _batches(tree: Path) -> list[list[str]]:
    """What is compiled together: sources of one package, so that others do not change its bytes.

    A source that several packages have, or whose text names the tree's path, is alone.
    """
    owners: dict[str, list[str]] = {}
    with_prefix = set()
    for file in listed_files(tree):
        owners.setdefault(file.path, []).append(file.record)
        if file.names_tree:
            with_prefix.add(file.path)
    batches: dict[str, list[str]] = {}
    single_sources = []
    for source in _sources(tree, "lib"):
        source_owners = owners.get(source, [])
        if len(source_owners) == 1 and source not in with_prefix:
            batches.setdefault(source_owners[0], []).append(source)
        else:
            single_sources.append([source])
    chunks = [chunk for owner in sorted(batches) for chunk in _chunks(batches[owner])]
    return [*chunks, *single_sources]


def _chunks(sources: Sequence[str]) -> list[list[str]]:
    return [list(sources[start : start + BATCH]) for start in range(0, len(sources), BATCH)]


def _list_in_records(
    tree: Path, records: Mapping[Path, CondaRecord], byte_code: Iterable[str]
) -> None:
    compiled: dict[str, list[str]] = {}
    for file in byte_code:
        compiled.setdefault(byte_code_source(file), []).append(file)
    for path, record in records.items():
        if list_byte_code(record, compiled):
            mode = path.stat().st_mode
            path.unlink()  # it may be a hard link
            path.write_text(json.dumps(record, indent=2, ensure_ascii=False), encoding="utf-8")
            path.chmod(mode)


def _remove_byte_code(folder: Path) -> None:
    for parent, names, _ in os.walk(folder):
        if FOLDER in names:
            names.remove(FOLDER)
            shutil.rmtree(Path(parent) / FOLDER)


# Trees have tens of thousands of files: their names are text, because a Path costs more than the
# system call that it names.


def _sources(tree: Path, folder: str) -> list[str]:
    """The sources below a folder of a tree, by their paths from the tree, sorted."""
    return sorted(file for file in _files(tree, folder) if _is_source(tree, file))


def _is_source(tree: Path, file: str) -> bool:
    if not file.endswith(".py") or "\n" in posixpath.basename(file):
        return False
    try:
        return stat.S_ISREG(os.lstat(f"{tree}/{file}").st_mode)
    except OSError:
        return False


def _compiled(tree: Path) -> list[str]:
    """The files of byte code below a tree's lib, by their paths from the tree, sorted."""
    files = [
        file
        for file in _files(tree, "lib")
        if file.endswith(".pyc") and posixpath.dirname(file).endswith(f"/{FOLDER}")
    ]
    return sorted(files)


def _files(tree: Path, folder: str) -> Iterator[str]:
    """Every file below a folder of a tree, by its path from the tree; links to folders are not
    followed."""
    root = os.fspath(tree)
    for parent, _, names in os.walk(f"{root}/{folder}"):
        location = parent.removeprefix(f"{root}/")
        for name in names:
            yield f"{location}/{name}"


def _relative(path: Path, tree: Path) -> str:
    return path.relative_to(tree).as_posix()
