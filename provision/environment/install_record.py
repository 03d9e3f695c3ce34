"""What was installed into a prefix: a digest per distribution and the hash of every file of byte
code, written once next to the prefix's marker, and compared later.

The digests are those of provision_runtime.facts.digests, which nodes and the smoke test compute too.
The runtime package is left out: it changes with provision, and has hashes of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from provision.adapters.installed_files import INSTALL_RECORD
from provision.core.atomic import atomic_write
from provision.core.json_text import parse_json
from provision.core.process import run
from provision.environment import activation, bytecode, runtime_package

SCHEMA = 1
RUNTIME = canonicalize_name(runtime_package.NAME)
RUNTIME_FOLDER = f"/site-packages/{runtime_package.NAME}/"


@dataclass(frozen=True, kw_only=True)
class InstallRecord:
    """distributions: version, kind and digest by name. byte_code: sha256 by path."""

    distributions: Mapping[str, Mapping[str, str]]
    byte_code: Mapping[str, str]


def complete(tree: Path, cache: Path | None = None) -> None:
    """Compile every source of an installed tree, and record what it holds.

    cache: as in bytecode.compile_all. Raises NoSpace on a full disk.
    """
    bytecode.compile_all(tree, "checked-hash", cache)
    write(tree)


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
    own_hashes = {path: sha256 for path, sha256 in hashes.items() if RUNTIME_FOLDER not in path}
    entries = digests(tree) if distributions is None else distributions
    return _write(tree, InstallRecord(distributions=entries, byte_code=own_hashes))


def update_scripts(tree: Path) -> None:
    """Replace the activation scripts of an earlier provision, and record them.

    They belong to no package. If other such files were changed since the tree was installed, the
    record stays, so that this is still seen.
    """
    record = read(tree)
    before = None if record is None else _of_no_package(digests(tree))
    activation.write_scripts(tree)
    if record is not None and before == _of_no_package(record.distributions):
        entries = {**record.distributions, **_of_no_package(digests(tree))}
        _write(tree, InstallRecord(distributions=entries, byte_code=record.byte_code))


def _of_no_package(
    distributions: Mapping[str, Mapping[str, str]],
) -> dict[str, Mapping[str, str]]:
    """The entry of the files that belong to no package."""
    return {name: entry for name, entry in distributions.items() if entry["kind"] == "files"}


def _write(tree: Path, record: InstallRecord) -> int:
    content = {
        "schema": SCHEMA,
        "distributions": record.distributions,
        "byte_code": record.byte_code,
    }
    text = json.dumps(content, indent=1) + "\n"
    atomic_write(tree / INSTALL_RECORD, text)
    return len(text)


def is_complete(tree: Path) -> bool:
    """Whether a tree has byte code and a record; not if an earlier provision made it."""
    return (tree / INSTALL_RECORD).exists()


def compile_runtime(tree: Path, cache: Path | None = None) -> None:
    """Compile the runtime package anew, after it was replaced."""
    folder = runtime_package.site_packages(tree) / runtime_package.NAME
    bytecode.compile_folder(tree, folder, "checked-hash", cache)


def read(tree: Path) -> InstallRecord | None:
    """None for a tree of an earlier provision, and for a record that cannot be read."""
    try:
        content = parse_json((tree / INSTALL_RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        return None
    return InstallRecord(distributions=content["distributions"], byte_code=content["byte_code"])


def digests(tree: Path) -> dict[str, dict[str, str]]:
    """The digest of each distribution in a tree, as nodes compute it. Opens no file but records."""
    answer = run([sys.executable, runtime_package.FOLDER, "digests", tree]).stdout
    distributions: dict[str, dict[str, str]] = json.loads(answer)["distributions"]
    distributions.pop(RUNTIME, None)
    return distributions
