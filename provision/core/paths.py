"""Where provision keeps things on this machine, and who may work on one name at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from provision.core.errors import SystemRefused, Taken
from provision.core.types import Progress


@dataclass(frozen=True, kw_only=True)
class Folders:
    """data: what was made and is used (prefixes, images, channels). cache: what can be fetched again. envs: a lab's own folder.
    templates: a lab's own templates of generated files, if it has any."""

    data: Path
    cache: Path
    envs: Path
    templates: Path | None = None

    @property
    def prefixes(self) -> Path:
        return self.data / "prefixes"

    @property
    def images(self) -> Path:
        return self.data / "images"

    @property
    def packed(self) -> Path:
        """The same images with compressed layers."""
        return self.data / "packed"

    @property
    def channels(self) -> Path:
        return self.data / "channels"

    def smoke(self, name: str) -> Path:
        """What the latest smoke tests of an environment left: reports, logs, baselines."""
        return self.data / "smoke" / name

    @property
    def pulled(self) -> Path:
        """Images out of registries: bases, and what a pull that broke off left."""
        return self.cache / "pulled-images"

    @property
    def packages(self) -> Path:
        return self.cache / "conda-packages"


def folders(envs: Path | None = None) -> Folders:
    """The user's folders by the platform's convention (XDG on Linux); PROVISION_DATA and PROVISION_CACHE move them."""
    import platformdirs

    return Folders(
        data=Path(
            os.environ.get("PROVISION_DATA") or platformdirs.user_data_path("provision")
        ).absolute(),
        cache=Path(
            os.environ.get("PROVISION_CACHE") or platformdirs.user_cache_path("provision")
        ).absolute(),
        envs=Path(envs or os.environ.get("PROVISION_ENVS") or "envs").absolute(),
        templates=Path("templates").absolute(),
    )


@contextlib.contextmanager
def held(where: Folders, name: str, progress: Progress, *, wait: bool = True) -> Iterator[None]:
    """Hold an environment's name on this machine; waits for another holder and says who it is, or raises Taken.

    The lock is the kernel's (flock on an empty file that is never written), so a killed holder lets go, and a run that finds
    nothing to do leaves no trace.
    """
    folder = where.data / "held"
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = open_lock(folder / name)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(os.fstat(descriptor).st_ino)
            if not wait:
                raise Taken(
                    f"{name} is being worked on by {holder}.",
                    advice="Wait for it, or leave out --no-wait.",
                ) from None
            progress.say(f"waiting for {holder}, which works on {name}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise SystemRefused(
                f"The disk of {where.data} cannot lock files: {error.strerror}.",
                advice="Set PROVISION_DATA to a folder on another disk.",
            ) from error
        yield
    finally:
        os.close(descriptor)


def open_lock(path: Path) -> int:
    """A file to be locked with flock, made if it is not there. For writing where we may: on NFS nothing else can be locked exclusively."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _holder(inode: int) -> str:
    """Who has the lock on this file, from the kernel's list: `1: FLOCK  ADVISORY  WRITE <pid> <major>:<minor>:<inode> 0 EOF`."""
    try:
        rows = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        pid = next(
            row[4]
            for row in rows
            if len(row) > 5 and row[1] == "FLOCK" and row[5].endswith(f":{inode}")
        )
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (OSError, StopIteration):
        return "another process"
    return f"process {pid} (`{' '.join(words).strip()}`)"


def beside(path: Path) -> Path:
    """A hidden name in the same folder, for building what will be renamed to `path`. The same for every build of that path,
    so that what a killed build left is found and removed by the next one, which holds the name."""
    return path.with_name(f".{path.name}.provision-building")


def replaced(path: Path) -> Path:
    """Where the old product goes for the moment between the swap and its removal."""
    return path.with_name(f".{path.name}.provision-replaced")


def sweep(path: Path) -> None:
    """Remove what an earlier, killed build of `path` left beside it."""
    for left in (beside(path), replaced(path)):
        if left.exists():
            shutil.rmtree(left)


def sweep_until_quiet(path: Path, *, quiet_s: float, patience_s: float) -> None:
    """Remove what a build of `path` left, again and again until it has stayed away for quiet_s, because a writer that cannot be
    stopped (rattler's own threads, after Ctrl-C) may add to it. Gives up after patience_s."""
    end = time.monotonic() + patience_s
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < quiet_s and time.monotonic() < end:
        for left in (beside(path), replaced(path)):
            if left.exists():
                shutil.rmtree(left, ignore_errors=True)
                quiet_since = time.monotonic()
        time.sleep(0.05)


def write_whole(path: Path, text: str) -> None:
    """Put a whole file in place, or leave the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(0o644)
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink()
            raise


def prefix_path(where: Folders, name: str, asked: Path | None = None) -> Path:
    """Where an environment's prefix is: as asked now, as asked when it was last made, else the usual place."""
    if asked:
        return asked.absolute()
    known = _elsewhere(where).get(name)
    return Path(known[-1]) if known else where.prefixes / name


def prefixes_of(where: Folders, name: str) -> list[Path]:
    """Every place where a prefix of that name was made, the usual one included."""
    return [where.prefixes / name, *map(Path, _elsewhere(where).get(name, ()))]


def remember(where: Folders, name: str, path: Path) -> None:
    """Note where a prefix was made, if that is not the usual place or no longer is."""
    known = _elsewhere(where).get(name, [])
    wanted = [*(place for place in known if place != str(path)), str(path)]
    if wanted != known and (known or path != where.prefixes / name):
        _note(where, name, wanted)


def forget(where: Folders, name: str) -> None:
    """Forget the places of a name whose prefixes were removed."""
    if name in _elsewhere(where):
        _note(where, name, [])


def known_prefixes(where: Folders) -> dict[str, Path]:
    """Every prefix of this user by name, where it was last made."""
    usual = {
        path.name: path
        for path in sorted(where.prefixes.glob("*"))
        if path.is_dir() and not path.name.startswith(".")
    }
    return usual | {name: Path(places[-1]) for name, places in _elsewhere(where).items()}


def _note(where: Folders, name: str, places: list[str]) -> None:
    where.data.mkdir(parents=True, exist_ok=True)
    with _exclusive(where.data / "elsewhere.lock"):
        known = {key: value for key, value in _elsewhere(where).items() if key != name}
        write_whole(
            where.data / "elsewhere.json",
            json.dumps(known | ({name: places} if places else {}), indent=1) + "\n",
        )


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    descriptor = open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _elsewhere(where: Folders) -> dict[str, list[str]]:
    """Places by name. A file that is damaged counts as empty: it holds nothing that cannot be given again with --prefix."""
    try:
        known = json.loads((where.data / "elsewhere.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    rows = known.items() if isinstance(known, dict) else ()
    return {
        name: [place for place in places if isinstance(place, str)]
        for name, places in rows
        if isinstance(places, list) and places
    }
