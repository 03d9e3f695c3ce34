"""What was installed into a prefix: a digest per distribution and the hash of every file of byte
code, written once next to the prefix's marker, and compared later.

The digests are those of provision_runtime.facts.digests, which nodes and the smoke test compute too.
The runtime package is left out: it changes with provision, and has hashes of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from packaging.utils import canonicalize_name

from provision.adapters.installed_files import INSTALL_RECORD
from provision.core.atomic import atomic_write
from provision.core.dataclass import frozen
from provision.core.records import parse_record
from provision.environment import bytecode, runtime_package
from provision_runtime.facts.digests import OTHER, prefix_digests

RUNTIME = canonicalize_name(runtime_package.NAME)
RUNTIME_FOLDER = f"/site-packages/{runtime_package.NAME}/"


@frozen
class InstallRecord:
    """distributions: version, kind and digest by name. byte_code: sha256 by path."""

    distributions: Mapping[str, Mapping[str, str]]
    byte_code: Mapping[str, str]


def write(
    tree: Path,
    byte_code: Mapping[str, str] | None = None,
    distributions: Mapping[str, Mapping[str, str]] | None = None,
) -> int:
    """Record what a compiled tree holds. Returns the size of the record.

    byte_code: the hash of each file of byte code, distributions: the digests, if they are known
    already.
    """
    hashes = bytecode.compiled_files(tree) if byte_code is None else byte_code
    hashes = {path: sha256 for path, sha256 in hashes.items() if RUNTIME_FOLDER not in path}
    entries = digests(tree) if distributions is None else distributions
    text = json.dumps({"distributions": entries, "byte_code": hashes}, indent=1) + "\n"
    atomic_write(tree / INSTALL_RECORD, text)
    return len(text)


def compile_runtime(tree: Path, cache: Path | None = None) -> None:
    """Compile the runtime package anew, after it was replaced."""
    folder = runtime_package.site_packages(tree) / runtime_package.NAME
    bytecode.compile_folder(tree, folder, "checked-hash", cache)


def read(tree: Path) -> InstallRecord | None:
    """None if there is none, or if it cannot be read."""
    try:
        return parse_record(InstallRecord, (tree / INSTALL_RECORD).read_bytes())
    except (OSError, ValueError):
        return None


def digests(tree: Path, *, with_other: bool = True) -> dict[str, dict[str, str]]:
    """The digest of each distribution in a tree, as nodes compute it. Opens no file but records.

    with_other: also of the files that belong to none.
    """
    left_out = {RUNTIME} if with_other else {RUNTIME, OTHER}
    document = prefix_digests(os.fspath(tree), deep=False)
    distributions = cast("dict[str, dict[str, str]]", document["distributions"])
    return {name: entry for name, entry in distributions.items() if name not in left_out}
