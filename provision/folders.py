"""Where provision keeps things on this machine, and who may work on one name at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from provision.errors import Taken
from provision.model import Progress


@dataclass(frozen=True, kw_only=True)
class Folders:
    """data: what was made and is used (prefixes, images, channels). cache: what can be fetched again. envs: a lab's own folder."""

    data: Path
    cache: Path
    envs: Path

    @property
    def prefixes(self) -> Path:
        return self.data / "prefixes"

    @property
    def images(self) -> Path:
        return self.data / "images"

    @property
    def channels(self) -> Path:
        return self.data / "channels"

    @property
    def packages(self) -> Path:
        return self.cache / "conda-packages"

    @property
    def reports(self) -> Path:
        return self.data / "reports"


def folders(envs: Path | None = None) -> Folders:
    """The user's folders by the platform's convention (XDG on Linux); PROVISION_DATA and PROVISION_CACHE move them."""
    import platformdirs

    return Folders(
        data=Path(os.environ.get("PROVISION_DATA") or platformdirs.user_data_path("provision")).absolute(),
        cache=Path(os.environ.get("PROVISION_CACHE") or platformdirs.user_cache_path("provision")).absolute(),
        envs=Path(envs or os.environ.get("PROVISION_ENVS") or "envs").absolute(),
    )


@contextlib.contextmanager
def held(where: Folders, name: str, progress: Progress, *, wait: bool = True) -> Iterator[None]:
    """Hold an environment's name on this machine; waits for another holder and says who it is, or raises Taken.

    The lock is the kernel's (flock on an empty file that is never written), so a killed holder lets go, and a run that finds
    nothing to do leaves no trace.
    """
    folder = where.data / "held"
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / name, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(os.fstat(descriptor).st_ino)
            if not wait:
                raise Taken(f"{name} is being worked on by {holder}.", advice="Wait for it, or leave out --no-wait.") from None
            progress.say(f"waiting for {holder}, which works on {name}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _holder(inode: int) -> str:
    """Who has the lock on this file, from the kernel's list: `1: FLOCK  ADVISORY  WRITE <pid> <major>:<minor>:<inode> 0 EOF`."""
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        pid = next(row[4] for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5].endswith(f":{inode}"))
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (OSError, StopIteration):
        return "another process"
    return f"process {pid} (`{' '.join(words).strip()}`)"


def beside(path: Path) -> Path:
    """A hidden name in the same folder, for building what will be renamed to `path`. The same for every build of that path,
    so that what a killed build left is found and removed by the next one, which holds the name."""
    return path.with_name(f".{path.name}.building")


def sweep(path: Path) -> None:
    """Remove what an earlier, killed build of `path` left beside it."""
    for left in (beside(path), path.with_name(f".{path.name}.old")):
        if left.is_symlink() or left.is_file():
            left.unlink()
        elif left.exists():
            shutil.rmtree(left)


def prefix_path(where: Folders, name: str, asked: Path | None = None) -> Path:
    """Where an environment's prefix is: as asked now, as asked when it was made, else the usual place."""
    if asked:
        return asked.absolute()
    return Path(_elsewhere(where).get(name) or where.prefixes / name)


def remember(where: Folders, name: str, path: Path | None) -> None:
    """Note a prefix made outside of the usual place, or forget it (None, or the usual place)."""
    known = _elsewhere(where)
    wanted = {key: value for key, value in known.items() if key != name}
    if path is not None and path != where.prefixes / name:
        wanted[name] = str(path)
    if wanted != known:
        where.data.mkdir(parents=True, exist_ok=True)
        temporary = where.data / f".elsewhere.{os.getpid()}"
        temporary.write_text(json.dumps(wanted, indent=1) + "\n")
        temporary.replace(where.data / "elsewhere.json")


def known_prefixes(where: Folders) -> dict[str, Path]:
    """Every prefix of this user by name, wherever it is."""
    usual = {path.name: path for path in sorted(where.prefixes.glob("*")) if path.is_dir() and not path.name.startswith(".")}
    return usual | {name: Path(path) for name, path in _elsewhere(where).items()}


def _elsewhere(where: Folders) -> dict[str, str]:
    try:
        known = json.loads((where.data / "elsewhere.json").read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
