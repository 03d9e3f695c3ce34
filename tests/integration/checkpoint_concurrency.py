"""Several processes at one root: jobs that save the same steps, or other ones, readers, and prune. The program that
test_checkpoint_concurrency.py runs, with torch. Prints, as JSON, how often who did what; whatever goes wrong ends it.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from provision_runtime import checkpoint
from provision_runtime.checkpoint import catalog, layout, verification
from provision_runtime.checkpoint.storage import Storage
from tests.integration.checkpoint_faults import loaded, state

OVERWRITES = 500
SAVES = 60


class Fork:
    """A child that counts what it does; it goes on until the work says that it is over, or its parent does."""

    def __init__(self, work: Callable[[int], bool | None]) -> None:
        self._reader, writer = os.pipe()
        self._stop_reader, self._stop = os.pipe()
        self._parent = os.getpid()
        self._child = os.fork()
        if self._child:
            os.close(writer)
            os.close(self._stop_reader)
            return
        status, turns = 1, 0
        try:
            os.set_blocking(self._stop_reader, False)
            while not self._is_told_to_stop() and work(turns) is not False:
                turns += 1
            os.write(writer, str(turns).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)

    def _is_told_to_stop(self) -> bool:
        if os.getppid() != self._parent:
            return True
        try:
            return len(os.read(self._stop_reader, 1)) == 1
        except BlockingIOError:
            return False

    def turns(self, *, stop: bool = False) -> int:
        """How often it did its work; waits for its end."""
        if stop:
            os.write(self._stop, b".")
        with os.fdopen(self._reader) as pipe:
            text = pipe.read()
        status = os.waitpid(self._child, 0)[1]
        assert status == 0, f"a process ended with {status}"
        return int(text)


def overwrites(root: Path) -> dict[str, int]:
    """One step, saved again and again, while others read it: by name, and as the latest. Nobody sees it missing, mixed, or go back."""
    checkpoint.save(state(0), root, step=1)
    newest: dict[int | str, int] = {}

    def read(step: int | str) -> None:
        tag = loaded(root, step)
        assert tag >= newest.get(step, 0), f"after {newest[step]} came {tag}"
        newest[step] = tag

    readers = [Fork(lambda _: read("latest")), Fork(lambda _: read(1))]
    writer = Fork(
        lambda turn: turn < OVERWRITES and bool(checkpoint.save(state(turn + 1), root, step=1))
    )
    saves = writer.turns()
    reads = [reader.turns(stop=True) for reader in readers]
    assert loaded(root, 1) == loaded(root, "latest") == OVERWRITES
    assert sorted(path.name for path in root.iterdir()) == [
        "latest",
        f"step-000000000001.{OVERWRITES}",
    ]
    return {"overwrites": saves, "reads of the latest": reads[0], "reads of the step": reads[1]}


def two_jobs(
    root: Path, step_of: Callable[[int, int], int], *, is_pruned: bool = False
) -> dict[str, int]:
    """Two that save at once, one that reads, and perhaps one that prunes. Every save is committed, everything that is there is whole."""
    checkpoint.save(state(0), root, step=0)
    forks = [Fork(lambda _: bool(loaded(root, "latest") + 1))]
    if is_pruned:
        forks.append(Fork(lambda _: bool(checkpoint.prune(root, keep=2))))

    def job(number: int) -> Fork:
        return Fork(
            lambda turn: (
                turn < SAVES
                and bool(
                    checkpoint.save(state(1000 * number + turn), root, step=step_of(number, turn))
                )
            )
        )

    jobs = [job(1), job(2)]
    saves = sum(item.turns() for item in jobs)
    turns = [item.turns(stop=True) for item in forks]
    if not is_pruned:
        expected = {0} | {step_of(number, turn) for number in (1, 2) for turn in range(SAVES)}
        assert set(checkpoint.list_steps(root)) == expected
    _all_is_whole(root)
    return {"saves": saves, "reads": turns[0], **({"prunes": turns[1]} if is_pruned else {})}


def _all_is_whole(root: Path) -> None:
    storage = Storage(root)
    for name in catalog.committed(storage):
        assert verification.check_folder(storage, str(name))[1] == [], name
    last = {1000 * number + SAVES - 1 for number in (1, 2)}
    assert loaded(root, "latest") in last
    checkpoint.prune(root, keep=1)
    assert loaded(root, "latest") in last
    others = {path.name for path in root.iterdir() if layout.parse(path.name) is None}
    assert others == {"latest", "copies"}  # the second copies of what is kept


def main(place: Path) -> dict[str, dict[str, int]]:
    torch.set_num_threads(1)  # OpenMP's threads do not come along into a fork
    return {
        "overwrites": overwrites(place / "overwrites"),
        "same steps": two_jobs(place / "same", lambda _, turn: 1 + turn % 3),
        "other steps": two_jobs(place / "other", lambda number, turn: 1000 * number + turn),
        "pruned": two_jobs(place / "pruned", lambda _, turn: 1 + turn % 5, is_pruned=True),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
