"""Saves where the disk is really full, read-only, or refuses links: the program that test_checkpoint_places.py runs, with torch,
as root in a mount namespace of its own. Prints, as JSON, what was found in each place: the errnos that NotCommitted carried, bytes, steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from provision_runtime import checkpoint
from provision_runtime.comm.ranks import Ranks, single_process
from tests.checkpoints import temporaries
from tests.integration.checkpoint_faults import loaded, state

OLD, NEW, NEXT = 1, 2, 3


def command(*arguments: str) -> None:
    subprocess.run(arguments, check=True, capture_output=True)


def refused(root: Path, tag: int, ranks: Ranks) -> int:
    """The errno of a save that is not committed. What was there still is."""
    try:
        checkpoint.save(state(tag), root, step=tag, ranks=ranks)
    except checkpoint.NotCommitted as error:
        assert checkpoint.list_steps(root) == [OLD] and loaded(root, "latest") == OLD
        return error.errno
    raise AssertionError("the save was committed")


def after_the_check(act: Callable[[], None]) -> Ranks:
    """One rank, in whose way something comes once it has its temporary folder."""

    def exchange(name: str, payload: Any) -> list[Any]:
        if name.endswith("checkpoint/open"):
            act()
        return [json.loads(json.dumps(payload))]

    return Ranks(0, 1, exchange)


def full(folder: Path) -> list[int]:
    """From the beginning; and where others fill it during the save."""
    root, other = folder / "root", folder / "other"
    checkpoint.save(state(OLD), root, step=OLD)

    def fill(left: int) -> None:
        with other.open("wb") as file:
            while os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize > left:
                file.write(bytes(1 << 16))
                file.flush()

    fill(1 << 20)
    messages = [refused(root, NEW, single_process())]
    assert temporaries(root) == []
    other.unlink()
    messages.append(refused(root, NEW, after_the_check(lambda: fill(1 << 20))))
    assert temporaries(root) == []
    other.unlink()
    goes_on(root)
    return messages


def goes_on(root: Path) -> None:
    checkpoint.save(state(NEXT), root, step=NEXT)
    assert loaded(root, "latest") == NEXT and temporaries(root) == []


def read_only(folder: Path) -> list[int]:
    """From the beginning; and from the middle of a save, as after an error of the disk: then what was begun cannot be removed, and the
    next save of the same process does so."""
    root = folder / "root"
    checkpoint.save(state(OLD), root, step=OLD)

    def remount(how: str) -> None:
        command("mount", "-o", f"remount,{how}", str(folder))

    remount("ro")
    messages = [refused(root, NEW, single_process())]
    remount("rw")
    messages.append(refused(root, NEW, after_the_check(lambda: remount("ro"))))
    assert len(temporaries(root)) == 1
    remount("rw")
    goes_on(root)
    return messages


def without_links(folder: Path) -> int:
    """The older checkpoint lies on another mount, so the kernel refuses to link from it (EXDEV). How many bytes were written anew."""
    root = folder / "root"
    older = checkpoint.save(state(OLD), root, step=OLD).folder
    command("mount", "--bind", older, older)
    result = checkpoint.save(state(NEW), root, step=NEW)
    assert result.linked == 0 and loaded(root, OLD) == OLD and loaded(root, NEW) == NEW
    assert checkpoint.verify(root) == [] and temporaries(root) == []
    return result.written


def clock_goes_back(folder: Path) -> list[int]:
    """Each checkpoint is a day older on disk than the one before it, and nobody asks what time it is."""
    root, real_time = folder / "root", time.time

    def refuse() -> float:
        raise AssertionError("the clock was asked")

    time.time = refuse
    for day, step in enumerate((30, 10, 20)):
        saved = Path(checkpoint.save(state(step), root, step=step).folder)
        for path in (*saved.iterdir(), saved):
            os.utime(path, (10**9 - 86400 * day,) * 2)
    (root / "latest").unlink()
    result = [loaded(root, "latest")]
    checkpoint.prune(root, keep=1)
    time.time = real_time
    return [*result, *checkpoint.list_steps(root)]


def mounted(place: Path, name: str, *arguments: str) -> Path:
    folder = place / name
    folder.mkdir()
    command("mount", *arguments, str(folder))
    return folder


def ext4(place: Path) -> Path:
    """A file system of its own, in a file."""
    image = place / "ext4.img"
    with image.open("wb") as file:
        file.truncate(24 << 20)
    command("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
    return mounted(place, "ext4", "-o", "loop", str(image))


def main(place: Path) -> dict[str, Any]:
    torch.set_num_threads(1)  # OpenMP's threads do not come along into a fork
    outcomes: dict[str, Any] = {
        "full tmpfs": full(mounted(place, "tmpfs", "-t", "tmpfs", "-o", "size=12m", "none"))
    }
    outcomes["read-only"] = read_only(mounted(place, "read-only", "-t", "tmpfs", "none"))
    outcomes["without links"] = without_links(place)
    outcomes["clock"] = clock_goes_back(mounted(place, "clock", "-t", "tmpfs", "none"))
    if "loop" in sys.argv:
        outcomes["full ext4"] = full(ext4(place))
    return outcomes


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
