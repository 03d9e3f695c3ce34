"""Ranks that die or stop in the middle of a save, and eight that do not: the program that test_checkpoint_ranks.py runs, with torch.

One process imports torch; ranks are forks of it that meet through a TCPStore. The cases mostly wait for a deadline, so they run at once.
Prints, as JSON, what each rank was told.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

from provision_runtime import checkpoint
from provision_runtime.comm.addresses import free_port
from provision_runtime.comm.ranks import Ranks, single_process, through_store
from tests.checkpoints import temporaries

DEADLINE_S = 4.0
OLD, NEW, NEXT = 1, 2, 3


def state(rank: int, tag: int) -> dict[str, Any]:
    """What all ranks have, and what only this one has."""
    return {
        "all": torch.full((300_000,), float(tag)),
        f"rank {rank}": torch.full((300_000,), float(tag * 100 + rank)),
        "tag": tag,
    }


def check(root: Path, ranks: Ranks, tag: int) -> None:
    loaded_state = state(ranks.rank, -1)
    checkpoint.load(loaded_state, root, ranks=ranks)
    expected = state(ranks.rank, tag)
    assert loaded_state["tag"] == tag and all(
        torch.equal(loaded_state[name], expected[name]) for name in expected if name != "tag"
    ), loaded_state


class Group:
    """Forks, one per rank, each with what it returned or raised in a file. hosted: whether rank 0 hosts the store, or a process of its own.

    This process never has a store: its threads may hold a lock while it forks, which the child then waits for in vain.
    """

    def __init__(
        self,
        place: Path,
        name: str,
        size: int,
        work: Callable[[Ranks], object],
        *,
        hosted: bool = False,
    ) -> None:
        self._said = [place / f"{name}-{rank}.json" for rank in range(size)]
        port = free_port()
        if not hosted and not _fork():
            server = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
            while server:
                signal.pause()
        self.children = [
            self._rank(rank, size, port, work, hosted and rank == 0) for rank in range(size)
        ]

    def _rank(
        self, rank: int, size: int, port: int, work: Callable[[Ranks], object], hosts: bool
    ) -> int:
        child = _fork()
        if child:
            return child
        try:
            store = TCPStore(
                "127.0.0.1",
                port,
                is_master=hosts,
                wait_for_workers=False,
                timeout=timedelta(seconds=30),
            )
            self._said[rank].write_text(
                json.dumps(self._outcome(work, through_store(store, rank, size, DEADLINE_S)))
            )
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    @staticmethod
    def _outcome(work: Callable[[Ranks], object], ranks: Ranks) -> Any:
        try:
            work(ranks)
        except checkpoint.NotCommitted as error:
            return [*error.ranks]
        return "done"

    def wait(self, ranks: list[int]) -> dict[int, Any]:
        """What they were told: "done", or which ranks failed."""
        for rank in ranks:
            status = os.waitpid(self.children[rank], 0)[1]
            assert status == 0, f"rank {rank} ended with {status}"
        return {rank: json.loads(self._said[rank].read_text()) for rank in ranks}


def _fork() -> int:
    """A child that does not outlive this process (PR_SET_PDEATHSIG)."""
    child = os.fork()
    if not child:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    return child


@dataclass(frozen=True)
class Accident:
    """Rank `victim` of two gets the signal in the middle of its writing."""

    victim: int
    signal: signal.Signals
    hosted: bool = False

    @property
    def name(self) -> str:
        return f"{self.signal.name} {self.victim}{' with the store' if self.hosted else ''}"


ACCIDENTS = [
    Accident(1, signal.SIGKILL),
    Accident(0, signal.SIGKILL),
    Accident(1, signal.SIGSTOP),
    Accident(0, signal.SIGSTOP),
    Accident(0, signal.SIGKILL, hosted=True),
]


def save(root: Path, tag: int) -> Callable[[Ranks], object]:
    return lambda ranks: checkpoint.save(state(ranks.rank, tag), root, step=tag, ranks=ranks)


def struck(root: Path, accident: Accident) -> Callable[[Ranks], object]:
    def work(ranks: Ranks) -> None:
        left = [accident.signal] if ranks.rank == accident.victim else []

        def progress(doing: checkpoint.SaveProgress) -> None:
            if doing.written and left:
                left.pop()
                os.kill(os.getpid(), accident.signal)

        checkpoint.save(state(ranks.rank, NEW), root, step=NEW, ranks=ranks, progress=progress)

    return work


def accidents(place: Path) -> dict[str, Any]:
    roots = {accident: place / accident.name for accident in ACCIDENTS}
    groups = {
        accident: Group(place, f"old {accident.name}", 2, save(root, OLD))
        for accident, root in roots.items()
    }
    for group in groups.values():
        group.wait([0, 1])
    groups = {
        accident: Group(place, accident.name, 2, struck(root, accident), hosted=accident.hosted)
        for accident, root in roots.items()
    }
    outcomes = {accident: group.wait([1 - accident.victim]) for accident, group in groups.items()}
    stopped = [accident for accident in ACCIDENTS if accident.signal == signal.SIGSTOP]
    for accident, root in roots.items():
        assert checkpoint.list_steps(root) == [OLD], accident.name
        os.kill(
            groups[accident].children[accident.victim], signal.SIGCONT
        )  # those that died are zombies still
    for accident in stopped:  # it finds that the other gave up
        assert groups[accident].wait([accident.victim])[accident.victim] != "done", accident.name
        assert temporaries(roots[accident]) == []
    for accident, root in roots.items():
        if accident not in stopped:
            assert (
                os.WTERMSIG(os.waitpid(groups[accident].children[accident.victim], 0)[1])
                == signal.SIGKILL
            )
        assert checkpoint.list_steps(root) == [OLD], accident.name
        _goes_on(place, root, accident.name)
    return {
        accident.name: message
        for accident, messages in outcomes.items()
        for message in messages.values()
    }


def _goes_on(place: Path, root: Path, name: str) -> None:
    def work(ranks: Ranks) -> None:
        check(root, ranks, OLD)
        save(root, NEXT)(ranks)
        check(root, ranks, NEXT)

    assert Group(place, f"next {name}", 2, work).wait([0, 1]) == {0: "done", 1: "done"}
    assert temporaries(root) == []


def eight(place: Path) -> list[Any]:
    root = place / "eight"

    def work(ranks: Ranks) -> None:
        for tag in (OLD, NEW):
            save(root, tag)(ranks)
            check(root, ranks, tag)

    outcomes = Group(place, "eight", 8, work).wait(list(range(8)))
    assert checkpoint.verify(root) == []
    Group(place, "three", 3, lambda ranks: check(root, ranks, NEW)).wait([0, 1, 2])
    return list(outcomes.values())


def main(place: Path) -> dict[str, Any]:
    torch.set_num_threads(1)  # OpenMP's threads do not come along into a fork
    save(place / "alone", OLD)(
        single_process()
    )  # what torch imports late is imported before there are forks
    check(place / "alone", single_process(), OLD)
    return {**accidents(place), "eight": eight(place)}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
