"""Writes a conda package of format 2: a zip with an archive of the files and one of their description
(conda/ceps, CEP 35).

The same files give the same bytes.
"""

from __future__ import annotations

import itertools
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from provision.adapters import zstd
from provision.adapters.http import sha256_of
from provision.core import tar


def write_conda_package(package: Path, files: Path, index: Mapping[str, object]) -> None:
    """Write the files of a folder as a package.

    Args:
        package: The file to write, NAME-VERSION-BUILD.conda.
        files: The folder whose files, and links to them, are those of the package.
        index: info/index.json.
    """
    paths = sorted(path for path in files.rglob("*") if path.is_file())
    entries = [
        {
            "_path": path.relative_to(files).as_posix(),
            "path_type": "softlink" if path.is_symlink() else "hardlink",
            "sha256": sha256_of(path),
            "size_in_bytes": path.stat().st_size,
        }
        for path in paths
    ]
    description = {
        "info/index.json": index,
        "info/paths.json": {"paths": entries, "paths_version": 1},
    }
    documents: list[bytes] = []
    for name, document in description.items():
        data = json.dumps(document, sort_keys=True).encode()
        documents += tar.file_member(name, len(data), [data])
    with zipfile.ZipFile(package, "w") as archive:
        metadata = json.dumps({"conda_pkg_format_version": 2})
        archive.writestr(zipfile.ZipInfo("metadata.json"), metadata)
        _write_tar(archive, f"pkg-{package.stem}", _files(paths, files))
        _write_tar(archive, f"info-{package.stem}", documents)


def _write_tar(archive: zipfile.ZipFile, name: str, chunks: Iterable[bytes]) -> None:
    with archive.open(zipfile.ZipInfo(f"{name}.tar.zst"), "w", force_zip64=True) as file:
        zstd.compress_to(itertools.chain(chunks, [tar.END]), file)


def _files(paths: Iterable[Path], files: Path) -> Iterator[bytes]:
    for path in paths:
        yield from tar.tree_member(path.relative_to(files).as_posix(), path)
