"""Files that installers write into an environment: what they say about this host, for products that
must be the same on every host, and what provision itself records.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict, cast

from provision.core.credentials import without_credentials
from provision.core.json_text import parse_json

# Files that installers write for themselves, and files that differ between hosts: a cache marker,
# the origin of a wheel.
HOST_FILES = frozenset({"CACHEDIR.TAG", "direct_url.json", "uv_cache.json", "uv_build.json"})
# The kernel cuts off a longer interpreter line (BINPRM_BUF_SIZE was 128 before Linux 5.1).
MAX_INTERPRETER_LINE = 127
# What provision/environment/install_record.py writes. Not *.json, as conda reads each as a package.
INSTALL_RECORD = Path("conda-meta") / "provision.digests"
_BYTECODE = "__pycache__"
_HOST_KEYS = ("extracted_package_dir", "package_tarball_full_path", "link")


class PathRow(TypedDict, total=False):
    """A file of a conda package, as the records in conda-meta list it."""

    _path: str
    path_type: str
    sha256: str
    sha256_in_prefix: str
    prefix_placeholder: str
    original_path: str


class PathsData(TypedDict, total=False):
    paths: list[PathRow]


class CondaRecord(TypedDict, total=False):
    """A record in conda-meta, as far as we read it."""

    name: str
    version: str
    build: str
    sha256: str
    files: list[str]
    paths_data: PathsData


def conda_records(prefix: Path, pattern: str = "*.json") -> dict[Path, CondaRecord]:
    """The records in conda-meta, by their files. One that cannot be read is left out: its package
    counts as missing."""
    records = {}
    for path in sorted((prefix / "conda-meta").glob(pattern)):
        with suppress(OSError, ValueError):
            record = parse_json(path.read_text(encoding="utf-8"))
            if isinstance(record, dict) and "name" in record:
                records[path] = cast(CondaRecord, record)
    return records


def path_rows(record: CondaRecord) -> list[PathRow]:
    return record.get("paths_data", {}).get("paths", [])


def wheel_records(prefix: Path) -> list[Path]:
    """The RECORD of each wheel in a prefix; `lib/python3.1` is a link to the real folder."""
    records = sorted(prefix.glob("lib/python3*/site-packages/*.dist-info/RECORD"))
    return [record for record in records if not record.parents[2].is_symlink()]


def record_hash(content: bytes) -> str:
    """A hash as RECORD holds it: URL-safe base64 without padding (PEP 376, PEP 427)."""
    digest = hashlib.sha256(content).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def hex_digest(recorded: str) -> str | None:
    """RECORD's `sha256=...` in hex; None for other algorithms, which are not compared."""
    algorithm, _, value = recorded.partition("=")
    if algorithm != "sha256":
        return None
    return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()


def record_text(rows: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def write_record(record: Path, rows: Iterable[Sequence[str]]) -> None:
    """Replace a RECORD, which may be a hard link into uv's cache."""
    record.unlink()
    record.write_bytes(record_text(rows))


def without_host_paths(text: str) -> bytes:
    """A conda-meta record without this host's package cache and local channels, and without
    credentials of channels."""
    record = {key: value for key, value in json.loads(text).items() if key not in _HOST_KEYS}
    for key in ("url", "channel"):
        address = record.get(key)
        if not isinstance(address, str):
            continue
        if address.startswith("file:"):
            record[key] = without_folder(address, parts=2 if key == "url" else 0)
        else:
            record[key] = without_credentials(address)
    return (json.dumps(record, indent=2, sort_keys=True) + "\n").encode()


def without_folder(url: str, *, parts: int) -> str:
    """Only the last parts of a local channel's address: subdir and file name."""
    split = url.split("/")
    return "/".join(["file:///local-channel", *split[len(split) - parts :]])


def script_body(script: bytes, prefix: Path) -> bytes | None:
    """What follows the interpreter line that an installer wrote, or its three lines of sh if the
    path is too long for the kernel or has a space. None if the script does not start with the
    prefix's interpreter."""
    python = re.escape(os.fsencode(prefix)) + rb"/bin/python[0-9.]*"
    plain = rb"#!" + python + rb"[^\n]*\n"
    through_sh = rb"#!/bin/sh\n'''exec' ['\"]?" + python + rb"['\"]? [^\n]*\n' '''\n"
    match = re.match(plain + rb"|" + through_sh, script)
    return script[match.end() :] if match else None


def interpreter_lines(python: Path) -> bytes:
    """How a script starts with this interpreter: one line, or three lines of sh if the path is too
    long for the kernel or has a space. What installers write, whatever path they install to."""
    path = os.fsencode(python)
    line = b"#!" + path + b"\n"
    if len(line) <= MAX_INTERPRETER_LINE and b" " not in path:
        return line
    quoted = path.replace(b"'", b"'\"'\"'")
    return b"#!/bin/sh\n'''exec' '" + quoted + b"' \"$0\" \"$@\"\n' '''\n"


def recorded_byte_code(prefix: Path) -> dict[str, str]:
    """The sha256 of each file of byte code that provision made in a prefix, by path. Empty for a
    prefix of an earlier provision."""
    try:
        record = parse_json((prefix / INSTALL_RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    byte_code = record.get("byte_code") if isinstance(record, dict) else None
    return byte_code if isinstance(byte_code, dict) else {}


def recorded_paths(record: Path) -> Iterator[str]:
    """The paths that a wheel's RECORD lists, as they are written there. Raises OSError.

    An environment has tens of thousands, so only lines with quotes are parsed as CSV.
    """
    for line in record.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        if '"' in line:
            for row in csv.reader([line]):
                yield row[0]
        elif line:
            yield line.partition(",")[0]


def list_byte_code(record: CondaRecord, compiled: Mapping[str, Sequence[str]]) -> bool:
    """List byte code in the conda-meta record of its sources' package, as conda does for what it
    compiles, so that removing the package removes it. Returns whether the record changed.

    compiled: files of byte code by their source. The record's own are dropped.
    """
    rows = path_rows(record)
    remaining = [row for row in rows if _BYTECODE not in row["_path"].split("/")]
    files: list[str] = []
    for row in remaining:
        files += compiled.get(row["_path"], ())
    if not files and len(remaining) == len(rows):
        return False
    new_rows: list[PathRow] = [{"_path": file, "path_type": "pyc_file"} for file in files]
    record["paths_data"]["paths"] = [*remaining, *new_rows]
    listed = [file for file in record.get("files", []) if _BYTECODE not in file.split("/")]
    record["files"] = [*listed, *files]
    return True
