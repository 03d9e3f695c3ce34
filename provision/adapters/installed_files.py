"""What conda's and wheels' installers write about this host, for products that must be the same on
every host: images and packs.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from provision.core.mirrors import without_credentials

# Files that installers write for themselves, and files that differ between hosts: a cache marker,
# the origin of a wheel.
HOST_FILES = frozenset({"CACHEDIR.TAG", "direct_url.json", "uv_cache.json", "uv_build.json"})
# The kernel cuts off a longer interpreter line (BINPRM_BUF_SIZE was 128 before Linux 5.1).
MAX_INTERPRETER_LINE = 127
_HOST_KEYS = ("extracted_package_dir", "package_tarball_full_path", "link")


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
