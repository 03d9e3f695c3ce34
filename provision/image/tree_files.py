"""The files of packages that were installed for an image, as entries of layers: each in the layers of
the packages that list it, with the hash that they state.

Nothing here writes.
"""

from __future__ import annotations

import base64
import json
import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from provision.adapters.http import sha256_of
from provision.adapters.installed_files import (
    HOST_FILES,
    conda_records,
    list_byte_code,
    record_hash,
    record_text,
    recorded_byte_code,
    without_host_paths,
)
from provision.adapters.listed_files import listed_files
from provision.core.container import PREFIX, WORKSPACE
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.types import Lock, LockedPackage
from provision.image.layer_groups import PYTHON_GROUP, group_of
from provision.image.layers import LayerEntry, file_entry
from provision.image.own_files import HISTORY
from provision_runtime.facts.digests import byte_code_source

ROOT = PREFIX.lstrip("/")
# Where rattler puts files that lost to a file of another package, and uv's lock.
_LEFT_OUT = re.compile(r"__clobbers__/.*|\.lock|" + re.escape(HISTORY))


@dataclass
class _Tree:
    """What the records of a tree say. Paths are from the tree.

    owners: the packages that list a file. hashes: what it must be; empty if records disagree.
    rewritten: files that name the path of the environment. wheels: the files that each RECORD lists.
    projects: the folders of editable packages, by name.
    """

    owners: dict[str, list[LockedPackage]] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    rewritten: set[str] = field(default_factory=set)
    wheels: dict[str, list[str]] = field(default_factory=dict)
    projects: dict[str, Path] = field(default_factory=dict)


def package_entries(
    tree: Path, lock: Lock, byte_code: Path | None, code: Path | None
) -> dict[str, list[LayerEntry]]:
    """The files of a tree with the packages of a lock, by group.

    byte_code: a prefix of the same lock, from which each source gets its byte code. code: the folder
    that the image has as /workspace. Raises IntegrityError for a file that cannot be put into an image.
    """
    records = _read_records(tree, lock)
    entries = {path: _entry(tree, path, records.hashes.get(path, "")) for path in _files(tree, "")}
    for path, packages in records.owners.items():
        package = packages[-1]
        project = records.projects.get(package.name)
        if path not in entries:
            is_left_out = path.endswith(".pyc") or posixpath.basename(path) in HOST_FILES
            if package.manager == "pip" and not is_left_out:
                raise IntegrityError(
                    f"{package.name} lists {path}, which is not in the environment.",
                    advice=f"Run `uv cache clean {package.name}`, and the same command again.",
                )
        elif project is not None:
            entries[path] = _relocated(entries[path], package.name, project, code)
            records.rewritten.add(path)
    compiled = _byte_code_entries(byte_code, entries, records) if byte_code else {}
    _rewrite_records(tree, entries, records, compiled)
    sizes: Counter[str] = Counter()
    for path, packages in records.owners.items():
        if path in entries and not path.startswith("bin/"):
            for package in packages:
                sizes[package.name] += entries[path].size
    by_group: dict[str, dict[str, LayerEntry]] = {}
    for path, entry in sorted((entries | compiled).items()):
        owners = records.owners.get(path) or records.owners.get(byte_code_source(path), [])
        groups = {group_of(package, sizes[package.name]) for package in owners} or {PYTHON_GROUP}
        for group in groups:
            by_group.setdefault(group, {})[path] = entry
    return {group: list(members.values()) for group, members in by_group.items()}


def _read_records(tree: Path, lock: Lock) -> _Tree:
    records = _Tree()
    packages = {
        (package.manager, canonicalize_name(package.name)): package for package in lock.packages
    }
    for path, record in conda_records(tree).items():
        package = packages["conda", canonicalize_name(record["name"])]
        records.owners[f"conda-meta/{path.name}"] = [package]
    for file in listed_files(tree):
        if file.kind == "unreadable":
            raise IntegrityError(
                f"{file.path}, the RECORD of {file.package}, cannot be read.",
                advice="Report it to the makers of the wheel.",
            )
        package = packages[file.manager, canonicalize_name(file.package)]
        is_other = records.hashes.get(file.path, file.sha256) != file.sha256
        records.hashes[file.path] = "" if is_other and file.manager == "conda" else file.sha256
        records.owners.setdefault(file.path, []).append(package)
        if file.names_tree:
            records.rewritten.add(file.path)
        if file.manager == "pip":
            records.wheels.setdefault(file.record, []).append(file.path)
        if package.is_editable and package.name not in records.projects:
            origin = json.loads((tree / file.record).with_name("direct_url.json").read_bytes())
            records.projects[package.name] = Path(unquote(urlsplit(origin["url"]).path))
    return records


def _entry(tree: Path, relative: str, sha256: str) -> LayerEntry:
    path, image_path = tree / relative, f"{ROOT}/{relative}"
    if not path.is_symlink():
        return file_entry(image_path, path, sha256 or sha256_of(path))
    target = str(path.readlink())
    end = posixpath.normpath(posixpath.join(posixpath.dirname(image_path), target))
    if end.startswith("..") or (target.startswith("/") and not target.startswith(f"{PREFIX}/")):
        raise IntegrityError(
            f"/{image_path} of a package links to {target}, a file of the host, so it cannot be put into "
            "an image."
        )
    return LayerEntry(path=image_path, kind="link", mode=0o777, target=target)


def _relocated(entry: LayerEntry, package: str, project: Path, code: Path | None) -> LayerEntry:
    """A file of an editable package (a .pth, or a module that finds the package) with the project's
    folder in the image. Raises InvalidSpec if the image's code does not have it."""
    if code is None or not project.resolve().is_relative_to(code.resolve()):
        has = f"the code of the image is {code}" if code else "the image has no code"
        raise InvalidSpec(
            f"{package} is an editable of {project}, but {has}.",
            advice="Name a folder that holds both, with `code:` in spec.yml or --code; or add the "
            "package as a wheel: provision add NAME ./FOLDER",
        )
    assert entry.source is not None
    content = entry.source.read_bytes()
    target = PurePosixPath(WORKSPACE, project.resolve().relative_to(code.resolve()))
    for path in {project, project.resolve()}:
        pattern = re.escape(os.fsencode(path)) + rb"(?![\w.-])"
        content = re.sub(pattern, os.fsencode(target), content)
    return entry.with_content(content)


def _byte_code_entries(
    prefix: Path, entries: Mapping[str, LayerEntry], records: _Tree
) -> dict[str, LayerEntry]:
    """The byte code that a prefix has of these sources: its bytes depend on a source and its package
    alone. A source that names the path of the environment is another in the prefix."""
    compiled = {}
    for file, sha256 in recorded_byte_code(prefix).items():
        source = byte_code_source(file)
        if source in entries and source in records.owners and source not in records.rewritten:
            entry = file_entry(f"{ROOT}/{file}", prefix / file, sha256)
            compiled[file] = replace(entry, mode=0o644)
    return compiled


def _rewrite_records(
    tree: Path,
    entries: dict[str, LayerEntry],
    records: _Tree,
    compiled: Mapping[str, LayerEntry],
) -> None:
    """Take out of the packages' records what is of this host, and list what the image has."""
    by_source: dict[str, list[str]] = {}
    for file in sorted(compiled):
        by_source.setdefault(byte_code_source(file), []).append(file)
    for path, record in conda_records(tree).items():
        list_byte_code(record, by_source)
        name = f"conda-meta/{path.name}"
        entries[name] = entries[name].with_content(without_host_paths(json.dumps(record)))
    for name, files in records.wheels.items():
        site = posixpath.dirname(posixpath.dirname(name))
        rows = []
        for file in files:
            if file in entries:
                hash_and_size = ("", "") if file == name else _hash_and_size(entries[file])
                rows.append((posixpath.relpath(file, site), *hash_and_size))
        entries[name] = entries[name].with_content(record_text(sorted(rows)))


def _hash_and_size(entry: LayerEntry) -> tuple[str, str]:
    """As RECORD has them."""
    if entry.content is not None:
        return record_hash(entry.content), str(entry.size)
    digest = base64.urlsafe_b64encode(bytes.fromhex(entry.sha256)).rstrip(b"=").decode()
    return f"sha256={digest}", str(entry.size)


def _files(tree: Path, folder: str) -> Iterator[str]:
    """Every file and link of a tree, but byte code and what installers leave for themselves."""
    with os.scandir(tree / folder) as items:
        present = {item.name: item.is_dir(follow_symlinks=False) for item in items}
    for name, is_folder in present.items():
        path = f"{folder}{name}"
        is_byte_code = name.endswith(".pyc") and name[:-1] in present
        if name == "__pycache__" or is_byte_code or name in HOST_FILES or _LEFT_OUT.fullmatch(path):
            continue
        if is_folder:
            yield from _files(tree, f"{path}/")
        else:
            yield path
