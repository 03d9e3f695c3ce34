"""Whether an environment is as `provision lock NAME`, or `build NAME --no-image --no-smoke`, last left
it: then there is nothing to do, which takes 0.1 s to know instead of 0.6 s.

What decides is hashed before and after a run, our own code once. Only a run that found and left the same
is recorded, with what it printed, in the user's cache. Any other state, and whatever depends on more than files, takes the
usual way.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from provision.cli.console import Console
from provision.core import prefix_registry
from provision.core.atomic import atomic_write
from provision.core.paths import LAB, LAB_FACTS, SPEC, Folders, make_private_directory
from provision.core.settings import settings_files
from provision.environment.kernel import kernels_folder
from provision.environment.marker import MARKER

PACKAGE = Path(__file__).parents[1]
LIBRARIES = Path(sysconfig.get_path("purelib"))  # changes with each that is installed or removed
NAME = re.compile(r"[a-z0-9][a-z0-9._+-]*")
# Depend on this machine, on folders and repositories that are not hashed,
# or on the day.
ELSEWHERE = re.compile(rb"auto|host|as_of|file:|git\+|\./|\.\./|@")
VARIABLES = ("PROVISION_", "SOURCE_DATE_EPOCH", "UV_", "PIP_", "RATTLER_", "JUPYTER_", "XDG_")


def state(folders: Folders, name: str | None, *texts: str, installed: bool = False) -> str | None:
    """A hash of everything that decides what locking does, but for our own code; None if more than
    files decides.

    texts: what else decides. installed: the prefix and the kernels decide too.
    """
    if name is None or not NAME.fullmatch(name) or folders.change(name).exists():
        return None
    decisive = [sys.version, *os.uname(), str(os.getuid()), str(folders), *texts]
    decisive += [
        f"{key}={os.environ[key]}" for key in sorted(os.environ) if key.startswith(VARIABLES)
    ]
    prefix = prefix_registry.prefix_path(folders, name)
    # What was printed about the environment before, and is not printed again.
    reported = (prefix / "conda-meta", folders.passport(name) / "passport.json")
    try:
        if ELSEWHERE.search((folders.envs / name / SPEC).read_bytes()):
            return None
        products = _products(prefix) if installed else ()
        decisive += [_stat(path) for path in (*reported, *products)]
        for path in _contents(folders, name):
            content = path.read_bytes() if path.is_file() else b""
            decisive += [_stat(path), hashlib.sha256(content).hexdigest()]
    except OSError:
        return None
    return hashlib.sha256("\0".join(decisive).encode(errors="surrogateescape")).hexdigest()


def _code() -> Iterator[str]:
    """Every file of provision itself, its code, facts and templates, and the libraries."""
    yield _stat(LIBRARIES)
    for root in (PACKAGE, PACKAGE.parent / "templates", PACKAGE.parent / "provision_runtime"):
        yield from map(_stat, _files(root))


def _files(root: Path) -> Iterator[str]:
    """Names as text: there are hundreds, and a Path costs more than its status."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - {"__pycache__"})
        yield from (f"{folder}/{file}" for file in sorted(files))


def _products(prefix: Path) -> Iterator[str]:
    """What says which packages a prefix holds, our own in it, and the kernels of all prefixes. A file
    that was changed by hand is for `env diff --deep` to find, as after a build that takes the usual
    way."""
    yield from (f"{prefix}/{MARKER}", f"{prefix}/bin/python")
    yield from sorted(map(str, prefix.glob("conda-meta/*.json")))
    for site_packages in sorted(prefix.glob("lib/python3*/site-packages")):
        yield str(site_packages)
        yield from sorted(map(str, site_packages.glob("*.dist-info/RECORD")))
        yield from _files(site_packages / "provision_runtime")
    yield from _files(kernels_folder())
    yield from sorted(map(str, Path("/dev").glob("nvidia*")))


def _contents(folders: Folders, name: str) -> Iterator[Path]:
    """The files that are read whole: settings, the lab's templates, the environment's own."""
    yield from settings_files()
    yield folders.facts
    if folders.templates:
        yield from (folders.templates.parent / name for name in (LAB, LAB_FACTS))
        yield from sorted(folders.templates.rglob("*"))
    yield folders.envs / name
    yield from sorted((folders.envs / name).iterdir())


def _stat(path: Path | str) -> str:
    """A path, and what changes if the file does."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return f"{path} absent"
    values = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, status.st_size)
    return f"{path} {values}"


class RepeatableRun:
    """A run of a verb that may have nothing to do. name: None if more than files decides."""

    def __init__(
        self,
        console: Console,
        verb: str,
        folders: Folders,
        name: str | None,
        *texts: str,
        installed: bool = False,
    ) -> None:
        """texts, installed: as for `state`."""
        self._console, self._verb = console, verb
        # Our code, hashed once: this process began with it.
        self._state = partial(state, folders, name, *texts, *_code(), installed=installed)
        self._before = self._state()
        key = hashlib.sha256(os.fsencode(f"{verb} {folders.envs.absolute()} {name}")).hexdigest()
        self._record = folders.unchanged / f"{key[:32]}.json"

    def repeat(self) -> bool:
        """Print what the run printed that left this state; whether there was one."""
        try:
            if self._before is None or self._record.stat().st_uid != os.getuid():
                return False
            record = json.loads(self._record.read_bytes())
        except (OSError, ValueError):
            return False
        if not isinstance(record, dict) or record.get("state") != self._before:
            return False
        for kind, text in record["narrative"]:
            if kind == "warn":
                self._console.warn(text)
            else:
                self._console.info(text)
        self._console.result(self._verb, record["result"], record["lines"])
        return True

    def record(self, result: Mapping[str, Any], lines: str | Sequence[str]) -> None:
        """Record a run that changed nothing, if it did not."""
        if self._before is None or self._state() != self._before:
            return
        record = {"state": self._before, "narrative": self._console.narrative}
        make_private_directory(self._record.parent)
        text = json.dumps({**record, "result": result, "lines": lines}, default=str)
        atomic_write(self._record, text)
