"""Whether an installed environment is still what its folder in envs describes, by what the prefix
recorded of it when it was installed.

provision asks this before it starts a command in an environment. Its Jupyter kernels load this module
as an extension of IPython: the first cell of a session prints a notice. Reads a few small files.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any, FrozenSet, List, Mapping, Optional, Tuple

from .digests import read_marker as read_marker

RUNTIME = "provision_runtime"
# Code and its tables. Files that an editor or an interpreter leaves next to them are not part of
# the package.
PACKAGE_SUFFIXES = (".py", ".json", ".typed")
_SHOWN_PACKAGES = 3
# The states of which a command or a kernel that starts warns.
NOTICED = ("differs", "stale")


def lock_sha256(folder: str) -> str:
    """The hash of the lock of an environment's folder; empty if there is none."""
    return _sha256(os.path.join(folder, "conda-lock.yml"))


def spec_sha256(folder: str) -> str:
    """The hash of spec.yml without its comments and empty lines; empty if there is none."""
    return _sha256(os.path.join(folder, "spec.yml"), rb"(?m)^\s*#.*\n?|\s+#.*|\s+$|^\s+")


def _sha256(path: str, left_out: bytes = b"") -> str:
    try:
        with open(path, "rb") as file:
            content = file.read()
        if left_out:
            content = re.sub(left_out, b"", content)
        return hashlib.sha256(content).hexdigest()
    except OSError:
        return ""


def package_records(prefix: str) -> FrozenSet[str]:
    """The names of the records of all packages in a prefix, conda's and wheels'."""
    wheels = [name for folder in _site_packages(prefix) for name in _names(folder, ".dist-info")]
    return frozenset(wheels + _names(os.path.join(prefix, "conda-meta"), ".json"))


def _site_packages(prefix: str) -> List[str]:
    lib = os.path.join(prefix, "lib")
    pythons = [name for name in _names(lib) if name.startswith("python3")]
    return [os.path.join(lib, name, "site-packages") for name in pythons]


def _names(folder: str, suffix: str = "") -> List[str]:
    """The names in a folder that end so; none of one that may not be read."""
    try:
        return [name for name in os.listdir(folder) if name.endswith(suffix)]
    except OSError:
        return []


def changed_packages(prefix: str, state: Mapping[str, Any]) -> List[str]:
    """The packages that were added to a prefix, or removed from it, since it was installed.

    By the names of their records: `name-version.dist-info` of wheels, `name-version-build.json` of
    conda packages. An updated package is among them, because its version changed. None are known of
    a prefix that came in a pack.
    """
    recorded = state.get("records")
    changed = set()
    for record in package_records(prefix).symmetric_difference(recorded) if recorded else ():
        stem, suffix = os.path.splitext(record)
        changed.add(stem.rpartition("-")[0] if suffix == ".dist-info" else stem.rsplit("-", 2)[0])
    return sorted(changed - {RUNTIME})


@lru_cache(maxsize=1)
def _package_files(folder: str) -> FrozenSet[Tuple[str, str]]:
    """The files of the runtime package in a folder, with their sizes."""
    files = set()
    for parent, _, names in os.walk(folder):
        for path in [f"{parent}/{name}" for name in names if name.endswith(PACKAGE_SUFFIXES)]:
            in_package = path[len(folder) :]
            if "/." not in in_package:
                files.add((f"{RUNTIME}{in_package}", str(os.stat(path).st_size)))
    return frozenset(files)


def has_runtime(prefix: str, folder: str, version: str) -> bool:
    """Whether a prefix holds the runtime package of `folder`, by its version and the sizes of its
    files: none but a list is read."""
    for packages in _site_packages(prefix):
        record = os.path.join(packages, f"{RUNTIME}-{version}.dist-info", "RECORD")
        with suppress(OSError), open(record, "rb") as file:
            return _lists_package(file.read(), folder)
    return False


@lru_cache(maxsize=1)  # it is the same in many environments
def _lists_package(record: bytes, folder: str) -> bool:
    text = record.decode(errors="replace")
    recorded = re.findall(rf"(?m)^({RUNTIME}/.*),sha256=.*,(\d+)\r?$", text)
    return _package_files(folder) == frozenset(recorded)


def judge(
    prefix: str, folder: str = "", state: Optional[Mapping[str, Any]] = None
) -> Tuple[str, str]:
    """The state of a prefix, `current`, `differs`, `stale` or `no lock`, with its reason.

    folder: the environment's, by default the one that it was installed from. state: what the prefix
    recorded of itself, if it was read already. A file that was changed
    in place is not noticed: `provision env diff NAME --deep` reads all.
    """
    state = state or read_marker(prefix)
    folder = folder or str(state.get("folder"))
    if packages := changed_packages(prefix, state):
        more = len(packages) - _SHOWN_PACKAGES
        names = ", ".join(packages[:_SHOWN_PACKAGES]) + (f" and {more} more" if more > 0 else "")
        return "differs", f"changed since it was installed: {names}"
    if not (lock := lock_sha256(folder)):
        return "no lock", f"there is no {folder}/conda-lock.yml"
    if lock != state.get("lock_sha256"):
        return "stale", "installed from another lock than the present one"
    if (recorded := state.get("spec_sha256")) and spec_sha256(folder) not in ("", recorded):
        return "stale", "spec.yml was changed since it was installed"
    return "current", ""


def load_ipython_extension(shell: Any) -> None:
    """Print a notice above the output of a session's first cell."""

    def notify(_: object) -> None:
        shell.events.unregister("pre_run_cell", notify)
        verdict, reason = judge(sys.prefix)
        if verdict in NOTICED:
            name = read_marker(sys.prefix)["name"]
            print(
                f"warning: {name} is not up to date: {reason}. Run `provision build {name}`, then "
                "restart the kernel.",
                file=sys.stderr,
            )

    shell.events.register("pre_run_cell", notify)
