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
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from provision.adapters.http import sha256_of
from provision.adapters.installed_files import (
    CondaRecord,
    byte_code_source,
    conda_records,
    list_byte_code,
    normal_path,
    path_rows,
    recorded_paths,
    wheel_records,
)
from provision.core.errors import ToolFailed
from provision.core.host import usable_cpus
from provision.core.process import run, write_all
from provision.core.system_errors import tool_without_space
from provision.core.types import Meter, Progress
from provision.environment import runtime_package
from provision.environment.bytecode_cache import ByteCodeCache

# checked-hash: Python reads the source and compares its hash, so that an edited source counts.
# unchecked-hash: for what nobody can edit (PEP 552).
Mode = Literal["checked-hash", "unchecked-hash"]
FOLDER = "__pycache__"
COMPILER = runtime_package.FOLDER / "node" / "bytecode.py"
BATCH = 100  # sources; part of the bytes
ROUND = 8  # batches for each CPU


def compile_all(
    tree: Path, mode: Mode, cache: Path | None = None, progress: Progress | None = None
) -> None:
    """Compile every source below a tree's lib, instead of all byte code that packages brought or
    Python wrote. conda's records list the new files.

    cache: the folder of bytecode_cache.py. Raises NoSpace on a full disk.
    """
    _remove_byte_code(tree / "lib")
    records = conda_records(tree)
    batches = _batches(tree, records)
    if progress is None:
        _compile(tree, batches, mode, _open_cache(cache, records))
    else:
        with progress.meter("compiling every module", len(batches)) as meter:
            _compile(tree, batches, mode, _open_cache(cache, records), meter)
    _list_in_records(tree, records)


def compile_changes(tree: Path, staying: Collection[str], cache: Path | None = None) -> set[str]:
    """Compile the wheels that are new in a tree, which has byte code of all others.

    staying: the dist-info folders of wheels that did not change; conda's packages did not either.
    The runtime package is left out (see install_record.compile_runtime). Returns the sources that
    were compiled, by their paths from the tree.
    """
    records = conda_records(tree)
    runtime = tree.glob(f"lib/python3*/site-packages/{runtime_package.NAME}-*.dist-info")
    compiled = {*staying, *(path.name for path in (*records, *runtime))}
    batches = _batches(tree, records, compiled)
    _compile(tree, batches, "checked-hash", _open_cache(cache, records))
    return {source for batch in batches for source in batch}


def link_unchanged(old: Path, tree: Path, folders: Collection[str]) -> None:
    """Give the sources in these folders of a tree their byte code of another tree, and remove what is
    of no source there.

    For sources that are the same file in both trees. Removing a wheel removes all byte code next to
    it, also that of others (uv 0.13, and pip's rules allow it).
    """
    for folder in folders:
        old_files, files = (_byte_code_of_folder(root / folder) for root in (old, tree))
        for name in files - old_files:
            (tree / folder / FOLDER / name).unlink()
        for name in old_files:
            source, file = f"{folder}/{name.split('.')[0]}.py", f"{folder}/{FOLDER}/{name}"
            try:
                is_same = os.path.samestat(os.lstat(old / source), os.lstat(tree / source))
            except OSError:
                is_same = False
            if is_same:
                if name not in files:
                    (tree / file).parent.mkdir(exist_ok=True)
                    os.link(old / file, tree / file)
            elif name in files:
                (tree / file).unlink()


def _byte_code_of_folder(folder: Path) -> set[str]:
    try:
        return {path.name for path in (folder / FOLDER).iterdir() if path.suffix == ".pyc"}
    except OSError:
        return set()


def compile_folder(tree: Path, folder: Path, mode: Mode, cache: Path | None = None) -> None:
    """Compile the sources of one package, which has all of this folder."""
    _remove_byte_code(folder)
    sources = _sources(tree, _relative(folder, tree))
    _compile(tree, _chunks(sources), mode, _open_cache(cache, conda_records(tree)))


def compiled_files(tree: Path) -> dict[str, str]:
    """The sha256 of every file of byte code below a tree's lib, by its path from the tree."""
    return {file: sha256_of(tree / file) for file in _compiled(tree)}


def changed_files(
    tree: Path, earlier: Mapping[str, str], compiled: Collection[str]
) -> dict[str, str]:
    """The same, where only some sources were compiled since and others may be gone.

    earlier: what `compiled_files` returned before. compiled: those sources.
    """
    files = {}
    for file, sha256 in earlier.items():
        if os.path.lexists(f"{tree}/{file}"):
            files[file] = sha256
    for source in compiled:
        folder, name = posixpath.split(source)
        for file_name in _byte_code_of_folder(tree / folder):
            if file_name.startswith(f"{name.removesuffix('.py')}."):
                file = f"{folder}/{FOLDER}/{file_name}"
                files[file] = sha256_of(tree / file)
    return dict(sorted(files.items()))


def _open_cache(folder: Path | None, records: Mapping[Path, CondaRecord]) -> ByteCodeCache | None:
    """None if nobody asked for one, or if no package's hash says which Python compiles."""
    for record in records.values():
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
) -> None:
    missing = {} if cache is None else cache.restore(tree, batches, mode)
    pending = batches if cache is None else list(missing.values())
    # A process for some of them at a time, so that a bar moves on.
    step = len(pending) if meter is None else ROUND * usable_cpus()
    if meter is not None:
        meter.advance(len(batches) - len(pending))
    for start in range(0, len(pending), step or 1):
        _run_compiler(tree, pending[start : start + step], mode)
        if meter is not None:
            meter.advance(min(step, len(pending) - start))
    if cache is not None:
        cache.add(tree, missing)


def _run_compiler(tree: Path, batches: Sequence[Sequence[str]], mode: Mode) -> None:
    if not batches:
        return
    python = tree / "bin" / "python"
    # -S, -s: nothing of the tree runs, whose code would decide about the bytes too.
    options = ["-s", "-S", "-B", "-X", "utf8"]
    command = [python, *options, COMPILER, tree, mode, str(usable_cpus())]
    # The hash seed decides the order of sets, and so their bytes.
    variables = {"PATH": os.defpath, "PYTHONHASHSEED": "0"}
    text = os.fsencode("\n\n".join("\n".join(batch) for batch in batches))
    try:
        run(command, env=variables, feed=lambda stdin: write_all(stdin, text))
    except ToolFailed as error:
        if no_space := tool_without_space(error.tail, tree.parent):
            raise no_space from error
        raise


def _batches(
    tree: Path,
    records: Mapping[Path, CondaRecord],
    compiled: Collection[str] | None = None,
) -> list[list[str]]:
    """What is compiled together: sources of one package, so that others do not change its bytes.

    A source that several packages have, or whose text names the tree's path, is alone. compiled:
    packages whose sources have byte code already, by the names of their records; then sources of no
    package have it, too.
    """
    owners: dict[str, list[str]] = {}
    with_prefix = set()
    for path, record in records.items():
        for row in path_rows(record):
            owners.setdefault(row["_path"], []).append(path.name)
            if row.get("prefix_placeholder"):
                with_prefix.add(row["_path"])
    for record_file in wheel_records(tree):
        if _relative(record_file, tree) in owners:  # of a conda package, which lists its files
            continue
        folder = _relative(record_file.parents[1], tree)
        for listed in recorded_paths(record_file):
            path_in_tree = normal_path(f"{folder}/{listed}")
            owners.setdefault(path_in_tree, []).append(record_file.parent.name)
    sources = _sources(tree, "lib") if compiled is None else _sources_of(tree, owners, compiled)
    batches: dict[str, list[str]] = {}
    single_sources = []
    for source in sources:
        source_owners = owners.get(source, [])
        if len(source_owners) == 1 and source not in with_prefix:
            batches.setdefault(source_owners[0], []).append(source)
        else:
            single_sources.append([source])
    chunks = [chunk for owner in sorted(batches) for chunk in _chunks(batches[owner])]
    return [*chunks, *single_sources]


def _sources_of(
    tree: Path, owners: Mapping[str, Sequence[str]], compiled: Collection[str]
) -> list[str]:
    """The sources that a package has which is not compiled, sorted."""
    sources = []
    for file, packages in owners.items():
        is_new = any(package not in compiled for package in packages)
        if is_new and file.startswith("lib/") and _is_source(tree, file):
            sources.append(file)
    return sorted(sources)


def _chunks(sources: Sequence[str]) -> list[list[str]]:
    return [list(sources[start : start + BATCH]) for start in range(0, len(sources), BATCH)]


def _list_in_records(tree: Path, records: Mapping[Path, CondaRecord]) -> None:
    compiled: dict[str, list[str]] = {}
    for file in _compiled(tree):
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
        return stat.S_ISREG(os.lstat(tree / file).st_mode)
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
