"""A DataLoader with workers delivers this rank's samples unharmed, into pinned memory where there is a GPU.

The workers are forked, as in training code, although this process has threads of Gloo or NCCL: they touch neither. A worker
that dies (a bus error where /dev/shm is too small) or hangs is an error of the loader within its time limit.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

from ...outcome import Finding, Outcome, error_in_words
from ...watchdog import SIGNALS
from . import sampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ...session import Session

WORKERS = 2
WORKERS_QUICK = 1
BATCH = 4
# 64 KiB per sample: the batches in flight fill a /dev/shm that is much too small, and fit into one that is not.
NUMBERS = 16 << 10
LIMIT_S = 30.0
PR_SET_PDEATHSIG = 1
# Which process it was differs between ranks that suffer the same.
PIDS = re.compile(r" ?\(pid(\(s\))? [\d, ]+\)")


class Samples:
    """A map-style dataset whose samples can be predicted."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        import torch

        return torch.full((NUMBERS,), float(index))


def check(session: Session) -> Outcome:
    """Nothing here is collective, so a rank that fails keeps nobody waiting; what each found is exchanged afterwards."""
    workers = WORKERS_QUICK if session.options.quick else WORKERS
    started = time.monotonic()
    try:
        wrong = _first_wrong(session, workers)
    except Exception as error:  # what a worker raises comes as its own type
        wrong = in_words(error)
    data = {
        "workers": workers,
        "pinned": session.on_gpu,
        "seconds": round(time.monotonic() - started, 3),
    }
    finding = failure(session.exchange("ddp/loader", wrong), workers)
    return Outcome(f"{_count(workers)} per rank", (finding,) if finding else (), data)


def failure(said: Sequence[str | None], workers: int) -> Finding | None:
    """One finding, in the words of the first: what is too small breaks at another place on each rank."""
    failed = tuple(rank for rank, wrong in enumerate(said) if wrong)
    return (
        Finding(
            "dataloader-failed", f"a DataLoader with {_count(workers)}: {said[failed[0]]}", failed
        )
        if failed
        else None
    )


def in_words(error: Exception) -> str:
    """What happened, without the traceback of a worker and the number of its process."""
    lines = str(error).strip().splitlines()
    if len(lines) > 1 and "DataLoader worker process" in lines[0]:
        return f"{lines[-1]} (in a worker)"
    return PIDS.sub("", error_in_words(error))


def _count(workers: int) -> str:
    return f"{workers} loader worker{'s' if workers > 1 else ''}"


def _first_wrong(session: Session, workers: int) -> str | None:
    """In words, or None when everything came as it must."""
    samples = sampling.SAMPLES_PER_RANK * session.place.world_size
    expected = sampling.indices(session, samples, 0)
    came: list[int] = []
    for batch in _loader(session, samples, workers):
        if session.on_gpu and not batch.is_pinned():
            return "a batch is not in pinned memory"
        for row in batch:
            if not bool((row == row[0]).all()):
                return f"sample {int(row[0])} was damaged on its way from a worker"
            came.append(int(row[0]))
    return (
        None
        if came == expected
        else f"{len(came)} samples came, not those {len(expected)} that the sampler chose, in its order"
    )


def _loader(session: Session, samples: int, workers: int) -> Any:
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler

    place = session.place
    dataset: Any = Samples(samples)
    sampler: Any = DistributedSampler(
        dataset, place.world_size, place.rank, shuffle=True, seed=session.options.seed
    )
    return DataLoader(
        dataset,
        batch_size=BATCH,
        sampler=sampler,
        num_workers=workers,
        pin_memory=session.on_gpu,
        timeout=max(1.0, min(LIMIT_S, session.remaining_s() / 2)),
        worker_init_fn=_Bond(os.getpid()),
        multiprocessing_context="fork",
    )


class _Bond:
    """A worker that ends when it is told to, and is killed when this rank ends, however it ends."""

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def __call__(self, worker: int) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._parent:
            os._exit(1)
